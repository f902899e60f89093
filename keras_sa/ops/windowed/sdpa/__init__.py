"""Windows through torch's scaled dot-product attention, on CPUs.

Its fused kernel keeps no scores and reads overlapping views, so that the keys
around a chunk are not copied. Only the bias that hides keys is as large as the
scores of a head; all heads that have one order share it.

Letters: as in `portable.py`; `h` heads with an order of their own (1 or `K`).
"""

import dataclasses
import functools

import keras
from keras import ops

from keras_sa import backend
from keras_sa.ops import ordering
from keras_sa.ops.windowed import chunked
from keras_sa.ops.windowed import common
from keras_sa.patterns import permutation as permutations

# By measurement on CPUs: a quarter of a window computes 1.25 w keys a query.
# The kernel's products are slow for fewer queries, and gain from no more.
_FEWEST_QUERIES, _MOST_QUERIES = 16, 64


def why_not(arguments):
    a = arguments
    if a.neighborhood != "window":
        return "`sdpa` computes neighborhood='window' only."
    if backend.device_kind(a.query) != "cpu":
        return "`sdpa` is for tensors on CPUs."
    wanted = {
        "attn_logits_soft_cap": a.attn_logits_soft_cap is not None,
        "dropout": bool(a.dropout),
        "sinks": a.sinks is not None,
        "return_lse in half precision": (
            a.return_lse
            and keras.backend.standardize_dtype(a.query.dtype)
            in ("bfloat16", "float16")
        ),
        "a scale that is a tensor": not isinstance(a.scale, (int, float)),
        "query, key and value of different dtypes": (
            len({a.query.dtype, a.key.dtype, a.value.dtype}) > 1
        ),
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            return f"`sdpa` has no {name}: torch's fused kernel has not."
    from keras_sa.ops.windowed.sdpa import torch

    return torch.why_not()


def by_default(arguments):
    """Not in `torch.compile`, which fuses the portable path, or export, whose
    program is to take any batch; nor where functions are transformed."""
    return not (backend.is_tracing() or backend.is_transforming())


def forward(arguments):
    from keras_sa.ops.windowed.sdpa import torch

    a = arguments
    batch_size, length, num_heads = a.query.shape[:3]
    order = inverse = None
    heads = 1
    if a.permutation is not None:
        order = ordering.with_head_axis(a.permutation)
        inverse = permutations.invert_permutation(order)
        heads = order.shape[1]
    chunks = choose_chunks(a)
    visible = _visible_keys(a, order, chunks, heads)  # [B * h or 1, t, c, S]
    output, lse = torch.WindowedAttention.apply(
        *(
            ordering.zero_padding(x, a.padding_mask)
            for x in (a.query, a.key, a.value)
        ),
        order,
        inverse,
        visible,
        chunks,
        a.scale,
        a.return_lse,
        functools.partial(_again, arguments),
    )
    if common.may_attend_to_nobody(a):
        something = _in_order(ops.any(visible, axis=-1), a, inverse, heads)
        output = ops.where(something[..., None], output, 0)
        lse = ops.where(something, lse, -float("inf"))
    output = ordering.zero_padding(output, a.padding_mask)
    if not a.return_lse:
        return output
    if a.padding_mask is not None:
        lse = ops.where(a.padding_mask[:, :, None], lse, -float("inf"))
    return output, lse


def _again(arguments, query, key, value):
    return chunked.attend_in_slot_order(
        chunked.attend_at_once,
        dataclasses.replace(arguments, query=query, key=key, value=value),
    )


def _in_order(something, arguments, inverse, heads):
    """Of slots `[B * h or 1, t, c]`, in order `[B or 1, n, heads or 1]`."""
    batch_size, length, num_heads = arguments.query.shape[:3]
    something = ops.reshape(something, (len(something), -1))
    if inverse is None:
        return something[:, :length, None]
    something = ops.broadcast_to(
        something, (batch_size * heads, something.shape[1])
    )
    something = ordering.unpermute_heads(
        something[..., None], inverse, batch_size, heads
    )[..., 0]
    return ops.repeat(something, num_heads // heads, axis=2)


def choose_chunks(arguments):
    length = arguments.query.shape[1]
    left, right = (
        min(x, length - 1) for x in (arguments.left, arguments.right)
    )
    size = (left + right + 1) // 4
    size = min(max(size, _FEWEST_QUERIES), _MOST_QUERIES, length)
    return common.Chunks(size, -(-left // size), -(-right // size))


def _visible_keys(arguments, order, chunks, heads):
    """Boolean `[B * h or 1, t, c, S]`."""
    a = arguments
    batch_size, length = a.query.shape[:2]
    position = common.original_positions(arguments, order)
    position = ordering.with_head_axis(position)  # [B or 1, h or 1, n]
    if a.attention_mask is not None or position.shape[1] > 1:
        shape = (batch_size, heads, length)
        position = ops.broadcast_to(position, shape)
    position = ops.reshape(position, (-1, length))
    position = common.positions_with_neighbors(position, chunks)
    masks = (a.padding_mask, a.attention_mask)
    is_static = isinstance(a.hidden_first, (int, type(None)))
    is_same = is_static and not common.order_matters(a, order)
    if is_same and all(mask is None for mask in masks):
        return _visible_in_order(a, position[:1], chunks)
    example = ops.repeat(ops.arange(batch_size, dtype="int32"), heads)
    return common.visible_keys(a, position, chunks, example)


def _visible_in_order(arguments, position, chunks):
    """`_visible_keys` where all chunks far from the ends are alike: tokens
    are in order, or their order makes no difference."""
    num_chunks = position.shape[1]
    # The first tokens may be hidden from those that reach them.
    first = chunks.before + -(-(arguments.hidden_first or 0) // chunks.size)
    num_alike = num_chunks - first - chunks.after - 1
    if num_alike < 2:
        return common.visible_keys(arguments, position, chunks, None)
    last = first + num_alike - 1
    kinds = ops.concatenate(
        [position[:, : first + 1], position[:, last + 1 :]], axis=1
    )
    visible = common.visible_keys(arguments, kinds, chunks, None)
    kind = ops.arange(num_chunks, dtype="int32")
    kind = ops.where(
        kind > last, kind - num_alike + 1, ops.minimum(kind, first)
    )
    return ops.take(visible, kind, axis=1)
