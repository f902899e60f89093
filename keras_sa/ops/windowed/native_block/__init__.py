"""Blocks of slots through the backend's own attention kernel.

The tokens of a block are sorted by original position, so a causal mask is the
plain lower triangle and needs no mask tensor. Padding and the empty slots of a
short last block are sorted last: no real query attends to them.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `h` heads
with an order of their own (1 or `K`), `m` slots, `w` slots in a block.
"""

import keras
from keras import ops

from keras_sa import backend
from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.ops.windowed import common


def why_not(arguments):
    a = arguments
    if a.neighborhood != "block":
        return "`native_block` computes neighborhood='block' only."
    wanted = {
        "attn_logits_soft_cap": a.attn_logits_soft_cap is not None,
        "sinks": a.sinks is not None,
        "return_lse": a.return_lse,
        "exclude_local": bool(a.hidden_windows),
        "hidden_first": a.hidden_first is not None,
        "attention_mask": a.attention_mask is not None,
        "dropout": bool(a.dropout),
        "a scale that is a tensor": not isinstance(a.scale, (int, float)),
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            return (
                f"`native_block` has no {name}: it runs the backend's own "
                "attention on whole blocks."
            )
    if keras.backend.standardize_dtype(a.query.dtype) == "float64":
        return (
            "`native_block` has no float64: the backend's own attention may "
            "compute it in float32."
        )
    if keras.config.backend() == "jax":
        return _why_not_on_jax(arguments)
    return None


def _why_not_on_jax(arguments):
    key, value = arguments.key, arguments.value
    if key.shape[3] != value.shape[3]:
        return (
            "`native_block` needs equal head dims of key and value: "
            "`keras.ops.dot_product_attention` on JAX does."
        )
    is_half = keras.backend.standardize_dtype(key.dtype) == "float16"
    if is_half and backend.device_kind(key) == "cpu":
        return (
            "`native_block` has no float16 on CPUs: "
            "`keras.ops.dot_product_attention` on JAX has not."
        )
    return None


def by_default(arguments):
    """On torch, and on JAX for cuDNN, which is for half precision. Else the
    backend's attention holds the scores of all blocks, too, and the others
    are faster."""
    if keras.config.backend() == "torch":
        # Its kernel has no forward-mode derivatives.
        return backend.is_tracing() or not backend.is_transforming()
    if keras.config.backend() == "tensorflow":
        return False
    dtype = keras.backend.standardize_dtype(arguments.query.dtype)
    is_half = dtype in ("bfloat16", "float16")
    return is_half and backend.device_kind(arguments.query) == "gpu"


def forward(arguments):
    a = arguments
    batch_size, length = ops.shape(a.query)[:2]
    order = ordering.sort_blocks(a.permutation, a.window_size, a.padding_mask)
    heads = order.shape[1] if len(order.shape) == 3 else 1
    inverse = common.slots_of_tokens(arguments, order)
    query, key, value = (
        _blocks(x, order, inverse, heads, arguments)
        for x in (a.query, a.key, a.value)
    )
    output = _attend(
        query,
        key,
        value,
        _visible_keys(arguments, order, heads),
        scale=a.scale,
        is_causal=a.is_causal,
    )
    output = ops.cast(output, a.value.dtype)
    num_heads, value_dim = a.query.shape[2], a.value.shape[3]
    output = ops.reshape(
        output, (batch_size * heads, -1, num_heads // heads * value_dim)
    )
    output = ordering.unpermute_heads(output, inverse, batch_size, heads, order)
    output = ops.reshape(output, (batch_size, length, num_heads, value_dim))
    return ordering.zero_padding(output, a.padding_mask)


def _attend(query, key, value, visible, *, scale, is_causal):
    """Attention within blocks `[N, w, H, D]` by the backend's own kernel."""
    if keras.config.backend() == "torch":
        from keras_sa.ops.windowed.native_block import torch

        return torch.attend(
            query, key, value, visible, scale=scale, is_causal=is_causal
        )
    if key.shape[2] == 1 < query.shape[2]:  # TensorFlow does not broadcast it
        key, value = (
            ops.repeat(x, query.shape[2], axis=2) for x in (key, value)
        )
    return ops.dot_product_attention(
        query, key, value, mask=visible, scale=scale, is_causal=is_causal
    )


def _blocks(x, order, inverse, heads, arguments):
    """`[B, n, H, D]` as blocks of slots `[B * h * blocks, w, H / h, D]`."""
    batch_size, length, num_heads, head_dim = ops.shape(x)
    x = ordering.zero_padding(x, arguments.padding_mask)
    if keras.config.backend() == "tensorflow":  # it scores in the input dtype
        x = ops.cast(x, softmax.compute_dtype(x.dtype))
    features = num_heads // heads * head_dim
    x = ops.reshape(x, (batch_size, length, heads, features))
    x = ordering.permute_heads(x, ordering.any_token(order, length), inverse)
    return ops.reshape(
        x, (-1, arguments.window_size, num_heads // heads, head_dim)
    )


def _visible_keys(arguments, order, heads):
    """Boolean `[B * h * blocks, 1, 1, w]`, or `None` when order settles it."""
    a = arguments
    batch_size, length = ops.shape(a.query)[:2]
    whole = isinstance(length, int) and length % a.window_size == 0
    if a.is_causal or (whole and a.padding_mask is None):
        return None
    visible = ordering.with_head_axis(
        ordering.is_real(order, length, a.padding_mask)
    )
    visible = ops.broadcast_to(
        visible, (batch_size, heads, ops.shape(order)[-1])
    )
    return ops.reshape(visible, (-1, 1, 1, a.window_size))
