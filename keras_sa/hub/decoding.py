"""Decoding in a window: a step reads the rows of its neighbours, no others.

Letters: `B` batch, `T` new tokens, `S` rows of the cache, `m` neighbours,
`H` query heads, `K` key/value heads, `G` heads in a group, `D` head dim,
`E` value head dim.
"""

from keras import ops

from keras_sa.ops import _softmax
from keras_sa.ops import patterns


def local_neighbors(positions, length, window_size):
    """int32 `[T, m]`: what each new token sees; -1 where there is none."""
    return patterns.sliding_window_neighbors(
        length, min(window_size, length), causal=True, positions=positions
    )


def stochastic_neighbors(
    positions, order, window_size, neighborhood, exclude_local=None
):
    """int32 `[T, m]`: what each new token sees; -1 where there is none.

    Args:
        positions: int32 `[T]`.
        order: the permutation over the cache and its inverse, int32 `[S]`.
    """
    permutation, slot_of = order
    return patterns.stochastic_neighbors(
        permutation,
        window_size,
        neighborhood,
        causal=True,
        exclude_local=exclude_local,
        positions=positions,
        slot_of=slot_of,
    )


def attend_to(
    query,
    key,
    value,
    neighbors,
    *,
    scale,
    logit_soft_cap=None,
    sinks=None,
    alibi_slopes=None,
):
    """Attention of new tokens to some rows of the cache.

    Args:
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        neighbors: int32 `[T, m]`: rows of the cache; -1 for none.
        scale: factor on the scores.
        logit_soft_cap: optional `c` of `c * tanh(score / c)`.
        sinks: optional `[H]`: extra logits in the denominator.
        alibi_slopes: optional `[H]`: bias per position of the key.

    Returns:
        `[B, T, H, E]`.
    """
    batch_size, _, num_heads, head_dim = ops.shape(query)
    num_new, num_neighbors = ops.shape(neighbors)
    num_kv_heads, value_dim = value.shape[2], value.shape[3]
    group = num_heads // num_kv_heads
    dtype = _softmax.compute_dtype(query.dtype)
    rows = ops.reshape(ops.maximum(neighbors, 0), (-1,))  # [T * m]

    def gather(x):
        x = ops.cast(ops.take(x, rows, axis=1), dtype)
        features = x.shape[3]
        shape = (batch_size, num_new, num_neighbors, num_kv_heads, features)
        return ops.transpose(ops.reshape(x, shape), (0, 1, 3, 2, 4))

    shape = (batch_size, num_new, num_kv_heads, group, head_dim)
    query = ops.cast(ops.reshape(query, shape), dtype)
    scores = _softmax.score(query, gather(key), scale, logit_soft_cap)
    if alibi_slopes is not None:
        slopes = ops.reshape(alibi_slopes, (num_kv_heads, group, 1))
        position = ops.cast(neighbors, dtype)[:, None, None, :]
        scores = scores + ops.cast(slopes, dtype) * position
    if sinks is not None:
        sinks = ops.cast(ops.reshape(sinks, (num_kv_heads, group, 1)), dtype)
    output, _ = _softmax.attend(
        scores,  # [B, T, K, G, m]
        gather(value),  # [B, T, K, m, E]
        neighbors[:, None, None, :] >= 0,
        sinks=sinks,
    )
    output = ops.reshape(output, (batch_size, num_new, num_heads, value_dim))
    return ops.cast(output, value.dtype)
