"""Attention to lists of keys in `keras.ops`, for every backend: O(T m).

Letters: `B` batch, `T` tokens that attend, `S` keys, `m` neighbors, `H` query
heads, `K` key/value heads, `G` heads in a group, `D` head dim, `E` value head
dim, `F` features.
"""

import functools

import keras
from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.patterns import permutation as permutations


def why_not(arguments):
    """The portable path does everything."""
    return None


def forward(arguments):
    a = arguments
    batch_size, num_new, num_heads, head_dim = ops.shape(a.query)
    num_kv_heads, value_dim = a.value.shape[2], a.value.shape[3]
    group = num_heads // num_kv_heads
    dtype = softmax.compute_dtype(a.query.dtype)
    shape = (batch_size, num_new, num_kv_heads, group, head_dim)
    query = ops.cast(ops.reshape(a.query, shape), dtype)
    key, value = (
        ops.cast(_gather(x, a.neighbors), dtype) for x in (a.key, a.value)
    )  # [B, T, K, m, F]
    scores = softmax.score(query, key, a.scale, a.attn_logits_soft_cap)
    neighbors = ops.transpose(a.neighbors, (0, 2, 1, 3))[:, :, :, None]
    if a.alibi_slopes is not None:
        slopes = ops.reshape(a.alibi_slopes, (num_kv_heads, group, 1))
        scores = scores + ops.cast(slopes, dtype) * ops.cast(neighbors, dtype)
    sinks = None
    if a.sinks is not None:
        sinks = ops.reshape(a.sinks, (num_kv_heads, group, 1))
        sinks = ops.cast(sinks, dtype)
    drop = None
    if a.dropout:
        drop = functools.partial(
            keras.random.dropout, rate=a.dropout, seed=a.dropout_seed
        )
    visible = neighbors >= 0  # [B or 1, T, K or 1, 1, m]
    output, lse = softmax.attend(
        scores,  # [B, T, K, G, m]
        value,
        softmax.bias_of(visible, dtype),
        sees_something=ops.any(visible, axis=-1, keepdims=True),
        sinks=sinks,
        return_lse=a.return_lse,
        drop=drop,
    )
    output = ops.reshape(output, (batch_size, num_new, num_heads, value_dim))
    output = ops.cast(output, a.value.dtype)
    if not a.return_lse:
        return output, None
    return output, ops.reshape(lse, (batch_size, num_new, num_heads))


def _gather(x, neighbors):
    """`[B, T, K, m, F]` of `[B, S, K, F]`."""
    batch_size, num_keys, num_heads, features = ops.shape(x)
    num_lists, heads, num_new, width = ops.shape(neighbors)
    rows = ops.maximum(neighbors, 0)
    if neighbors.shape[0] == 1 and neighbors.shape[1] == 1:
        # One list for all: rows of all heads, as they are in memory.
        x = ops.take(x, ops.reshape(rows, (-1,)), axis=1)
        shape = (batch_size, num_new, width, num_heads, features)
        return ops.transpose(ops.reshape(x, shape), (0, 1, 3, 2, 4))
    rows = ops.transpose(rows, (0, 2, 1, 3))  # [B or 1, T, K or 1, m]
    head = ops.arange(num_heads, dtype="int32")[:, None]
    start = permutations.starts(batch_size, num_keys * num_heads)
    index = rows * num_heads + head + start[:, :, None, None]
    return ordering.take_rows(x, index)
