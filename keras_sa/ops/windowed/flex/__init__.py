"""Windowed attention by torch's FlexAttention: a cross-check of the others.

Queries, keys and values are brought in slot order, where a window is a band of
tiles; a mask that looks up original positions does the rest.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim.
"""

import keras
from keras import ops

from keras_sa import backend
from keras_sa.ops import ordering
from keras_sa.ops.windowed import common
from keras_sa.patterns import permutation as permutations

_DTYPES = ("bfloat16", "float16", "float32")
_SMALLEST_DIM_ON_GPU = 16


def why_not(arguments):
    a = arguments
    if not backend.module().has_flex_attention():
        return "`flex` needs a newer torch, with FlexAttention's AuxRequest."
    dtypes = [
        keras.backend.standardize_dtype(x.dtype)
        for x in (a.query, a.key, a.value)
    ]
    objections = {
        "dropout": bool(a.dropout),
        "a scale that is a tensor": not isinstance(a.scale, (int, float)),
        "a soft cap that is a tensor": not isinstance(
            a.attn_logits_soft_cap, (int, float, type(None))
        ),
        f"{dtypes[0]}": dtypes[0] not in _DTYPES,
        "query, key and value of different dtypes": len(set(dtypes)) > 1,
    }
    for name, is_wanted in objections.items():
        if is_wanted:
            return f"`flex` has no {name}."
    return _why_not_on(backend.device_kind(a.query), arguments)


def by_default(arguments):
    """Only by name: it is there to check the others."""
    return False


def _why_not_on(device_kind, arguments):
    a = arguments
    if device_kind == "cpu":
        return _why_not_on_cpu(arguments)
    if device_kind != "gpu":
        return (
            "`flex` needs tensors on a GPU or, without gradients, on a CPU; "
            f"these are on {device_kind!r}."
        )
    if min(a.query.shape[3], a.value.shape[3]) < _SMALLEST_DIM_ON_GPU:
        return f"`flex` has no head dims below {_SMALLEST_DIM_ON_GPU} on GPUs."
    return None


def _why_not_on_cpu(arguments):
    a = arguments
    if backend.need_gradients(a.query, a.key, a.value, a.sinks):
        return (
            "`flex` has no gradients on CPUs: torch compiles FlexAttention's "
            "forward pass alone there, and uncompiled it holds n x n scores."
        )
    if a.return_lse or a.sinks is not None:
        return (
            "`flex` has no log-sum-exp on CPUs, which return_lse and sinks "
            "need: torch compiles FlexAttention's output alone there."
        )
    return None


def forward(arguments):
    from keras_sa.ops.windowed.flex import torch

    a = arguments
    order = common.order_of(a)  # [B or 1, K or 1, n]
    tokens = None  # slots are positions, and so they stay
    if a.permutation is not None:
        tokens = ops.where(order < 0, -1 - order, order)
    output, lse = torch.attend(
        *(_in_slot_order(x, tokens, a) for x in (a.query, a.key, a.value)),
        order,
        a.attention_mask,
        a.hidden_first,
        torch.window_of(a),
        scale=a.scale,
        soft_cap=a.attn_logits_soft_cap,
        with_lse=a.return_lse or a.sinks is not None,
    )
    if a.sinks is not None:
        output, lse = _with_sinks(output, lse, a.sinks)
    output = _in_original_order(ops.cast(output, a.value.dtype), tokens)
    if not a.return_lse:
        return output
    lse = _in_original_order(lse[..., None], tokens)[..., 0]
    if a.padding_mask is not None:
        lse = ops.where(a.padding_mask[:, :, None], lse, -float("inf"))
    return output, lse


def _in_slot_order(x, tokens, arguments):
    """`[B, n, H, D]` as `[B, H, n, D]`."""
    x = ordering.zero_padding(x, arguments.padding_mask)
    if tokens is None:
        return ops.transpose(x, (0, 2, 1, 3))
    batch_size, length, num_heads, head_dim = ops.shape(x)
    x = ordering.permute_heads(x, _for_heads(tokens, num_heads))
    return ops.reshape(x, (batch_size, num_heads, length, head_dim))


def _in_original_order(x, tokens):
    """`[B, H, n, E]` as `[B, n, H, E]`."""
    if tokens is None:
        return ops.transpose(x, (0, 2, 1, 3))
    batch_size, num_heads, length, value_dim = ops.shape(x)
    inverse = permutations.invert_permutation(tokens)
    return ordering.unpermute_heads(
        ops.reshape(x, (batch_size * num_heads, length, value_dim)),
        _for_heads(inverse, num_heads),
        batch_size,
        num_heads,
    )


def _for_heads(order, num_heads):
    """`[B or 1, K or 1, n]` as `[B or 1, num_heads or 1, n]`."""
    num_orders = order.shape[1]
    if num_orders in (1, num_heads):
        return order
    return ops.repeat(order, num_heads // num_orders, axis=1)


def _with_sinks(output, lse, sinks):
    """A sink takes its share of the weights: `[B, H, n, E]`, `[B, H, n]`."""
    total = ops.logaddexp(lse, ops.cast(sinks, lse.dtype)[:, None])
    return output * ops.exp(lse - total)[..., None], total
