"""Windows through torch's scaled dot-product attention, on CPUs.

Its fused kernel keeps no scores and reads overlapping views, so that the keys
around a chunk are not copied. Only the bias that hides keys is as large as the
scores of a head; all heads that have one order share it.

Letters: as in `portable.py`; `h` heads with an order of their own (1 or `K`).
"""

from keras import ops

from keras_sa.ops import permutation as permutations
from keras_sa.ops.windowed import portable

# By measurement on CPUs: a quarter of a window computes 1.25 w keys a query.
# The kernel's products are slow for fewer queries, and gain from no more.
_FEWEST_QUERIES, _MOST_QUERIES = 16, 64


def why_not(arguments):
    a = arguments
    if a.neighborhood != "window":
        return "`sdpa` computes neighborhood='window' only."
    if a.query.device.type != "cpu":
        return "`sdpa` is for tensors on CPUs."
    wanted = {
        "logit_soft_cap": a.logit_soft_cap is not None,
        "sinks": a.sinks is not None,
        "return_lse": a.return_lse,
        "dropout": bool(a.dropout),
        "a scale that is a tensor": not isinstance(a.scale, (int, float)),
        "query, key and value of different dtypes": (
            len({a.query.dtype, a.key.dtype, a.value.dtype}) > 1
        ),
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            return f"`sdpa` has no {name}: torch's fused kernel has not."
    return None


def by_default(arguments):
    """Not in `torch.compile`, which fuses the portable path, or export, whose
    program is to take any batch."""
    from keras_sa.ops import torch_tracing

    return not torch_tracing.is_tracing()


def forward(arguments):
    from keras_sa.ops.windowed import torch_windows_ops

    a = arguments
    batch_size, length, num_heads = a.query.shape[:3]
    order = a.permutation
    heads = 1 if order is None or len(order.shape) < 3 else a.key.shape[2]
    chunks = choose_chunks(a)
    inverse = None
    if order is not None:
        inverse = permutations.invert_permutation(order)
    visible = _visible_keys(a, order, chunks, heads)  # [B * h or 1, t, c, S]
    output = torch_windows_ops.attend(
        *(
            _in_slot_order(x, a, order, inverse, heads)
            for x in (a.query, a.key, a.value)
        ),
        visible,
        chunks,
        scale=a.scale,
    )  # [B * h, n, H / h, E]
    if a.exclude_local is not None or a.attention_mask is not None:
        something = ops.any(visible, axis=-1)  # [B * h or 1, t, c]
        something = ops.reshape(something, (something.shape[0], -1, 1, 1))
        output = ops.where(something[:, :length], output, 0)
    if order is not None:
        output = ops.reshape(output, (batch_size * heads, length, -1))
        output = permutations.unpermute_heads(
            output, inverse, batch_size, heads, permutation=order
        )
    output = ops.reshape(output, (batch_size, length, num_heads, -1))
    return permutations.zero_padding(output, a.padding_mask)


def choose_chunks(arguments):
    length = arguments.query.shape[1]
    left, right = (
        min(x, length - 1) for x in (arguments.left, arguments.right)
    )
    size = (left + right + 1) // 4
    size = min(max(size, _FEWEST_QUERIES), _MOST_QUERIES, length)
    return portable.Chunks(size, -(-left // size), -(-right // size))


def _in_slot_order(x, arguments, order, inverse, heads):
    """`[B, n, H, D]` as `[B * h, n, H / h, D]`."""
    batch_size, length, num_heads, features = x.shape
    x = permutations.zero_padding(x, arguments.padding_mask)
    if order is None:
        return x
    own = num_heads // heads
    x = ops.reshape(x, (batch_size, length, heads, own * features))
    x = permutations.permute_heads(x, order, inverse)
    return ops.reshape(x, (batch_size * heads, length, own, features))


def _visible_keys(arguments, order, chunks, heads):
    """Boolean `[B * h or 1, t, c, S]`."""
    a = arguments
    batch_size, length = a.query.shape[:2]
    position = ops.arange(length, dtype="int32") if order is None else order
    real = permutations.is_real(position, length, a.padding_mask)
    position = ops.where(real, position, portable.NOWHERE)
    position = permutations.with_head_axis(position)  # [B or 1, h or 1, n]
    if a.attention_mask is not None or position.shape[1] > 1:
        shape = (batch_size, heads, length)
        position = ops.broadcast_to(position, shape)
    position = ops.reshape(position, (-1, length))
    position = portable.positions_with_neighbors(position, chunks)
    if order is None and a.padding_mask is None and a.attention_mask is None:
        return _visible_in_order(a, position, chunks)
    example = ops.repeat(ops.arange(batch_size, dtype="int32"), heads)
    return portable.visible_keys(a, position, chunks, example)


def _visible_in_order(arguments, position, chunks):
    """`_visible_keys` where all chunks far from the ends see alike."""
    num_chunks = position.shape[1]
    num_alike = num_chunks - chunks.before - chunks.after - 1
    if num_alike < 2:
        return portable.visible_keys(arguments, position, chunks, None)
    first, last = chunks.before, chunks.before + num_alike - 1
    kinds = ops.concatenate(
        [position[:, : first + 1], position[:, last + 1 :]], axis=1
    )
    visible = portable.visible_keys(arguments, kinds, chunks, None)
    kind = ops.arange(num_chunks, dtype="int32")
    kind = ops.where(
        kind > last, kind - num_alike + 1, ops.minimum(kind, first)
    )
    return ops.take(visible, kind, axis=1)
