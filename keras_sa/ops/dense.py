"""Masked attention over all pairs: the oracle that everything is tested with.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim.
"""

import keras
from keras import ops

from keras_sa import _validation
from keras_sa.ops import softmax
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.inputs import empty_attention
from keras_sa.ops.inputs import zeros_of


def dense_attention(
    query,
    key,
    value,
    mask=None,
    *,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    return_lse=False,
    return_weights=False,
    dropout=0.0,
    dropout_seed=None,
):
    """Softmax attention under any boolean mask, with O(n^2) time and memory.

    Slow and readable: the reference for the other ops, and what layers use to
    return attention scores.

    Args:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        mask: optional boolean or integer tensor that broadcasts to
            `[B, H, n, n]`; true or 1 where the row may attend to the column.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: optional `c`: scores become `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        return_lse: whether to return the log-sum-exp as well.
        return_weights: whether to return the attention weights as well.
        dropout: rate of dropout on the attention weights.
        dropout_seed: `keras.random.SeedGenerator` or int for the dropout.

    Returns:
        `[B, n, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, n, H]`, float32 at least; with `return_weights` also
        `[B, H, n, n]` (before dropout), last. A row that attends to nothing has
        output 0 and log-sum-exp -inf (with sinks: the sink).

    Raises:
        ValueError: if shapes do not fit self-attention, or the mask is
            neither boolean nor integer.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 5, 4, 8), seed=0)
    >>> keras_sa.ops.dense_attention(x, x, x).shape
    (2, 5, 4, 8)

    Reference:
        Attention Is All You Need, https://arxiv.org/abs/1706.03762
    """
    i = check_inputs(
        query,
        key,
        value,
        scale=scale,
        attn_logits_soft_cap=attn_logits_soft_cap,
        sinks=sinks,
        return_lse=return_lse,
        dropout=dropout,
        dropout_seed=dropout_seed,
    )
    if mask is not None:
        mask = ops.convert_to_tensor(mask)
        _validation.check_mask_dtype("mask", mask)
    if i.is_empty:
        return _empty(i, return_weights)
    query, key, value, sinks = i.query, i.key, i.value, i.sinks
    out_dtype = value.dtype
    dtype = softmax.compute_dtype(query.dtype)
    group = query.shape[2] // key.shape[2]
    query = ops.cast(query, dtype)
    key = ops.repeat(ops.cast(key, dtype), group, axis=2)  # [B, n, H, D]
    value = ops.repeat(ops.cast(value, dtype), group, axis=2)

    scores = ops.einsum("bihd,bjhd->bhij", query, key) * i.scale
    if attn_logits_soft_cap is not None:
        # tanh, written so: on JAX `ops.tanh` turns float64 into float32.
        half = ops.sigmoid(scores * (2 / attn_logits_soft_cap))
        scores = attn_logits_soft_cap * (2 * half - 1)
    if mask is not None:
        scores = ops.where(ops.cast(mask, "bool"), scores, -float("inf"))
    highest = ops.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        sinks = ops.cast(sinks, dtype)[None, :, None, None]
        highest = ops.maximum(highest, sinks)
    # A row that attends to nobody: exp(-inf - 0) is 0, exp(-inf + inf) is not.
    highest = ops.stop_gradient(
        ops.where(highest == -float("inf"), ops.zeros_like(highest), highest)
    )
    unnormalized = ops.exp(scores - highest)
    total = ops.sum(unnormalized, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + ops.exp(sinks - highest)
    empty = total == 0
    safe_total = ops.where(empty, ops.ones_like(total), total)
    weights = unnormalized / safe_total  # [B, H, n, n]
    dropped = (
        keras.random.dropout(weights, dropout, seed=dropout_seed)
        if dropout
        else weights
    )
    output = ops.cast(ops.einsum("bhij,bjhe->bihe", dropped, value), out_dtype)
    results = [output]
    if return_lse:
        lse = ops.where(empty, -float("inf"), highest + ops.log(safe_total))
        results.append(ops.transpose(lse[..., 0], (0, 2, 1)))  # [B, n, H]
    if return_weights:
        results.append(weights)
    return results[0] if len(results) == 1 else tuple(results)


def _empty(inputs, return_weights):
    results = empty_attention(inputs)
    if not return_weights:
        return results
    batch_size, length, num_heads = ops.shape(inputs.query)[:3]
    shape = (batch_size, num_heads, length, length)
    dtype = softmax.compute_dtype(inputs.query.dtype)
    weights = zeros_of((inputs.query, inputs.key), shape, dtype)
    results = results if isinstance(results, tuple) else (results,)
    return *results, weights
