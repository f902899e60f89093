"""Attention to neighbours in `keras.ops`, for every backend: O(m).

Letters: `B` batch, `T` new tokens, `S` rows of the cache, `m` neighbours,
`H` query heads, `K` key/value heads, `G` heads in a group, `D` head dim,
`E` value head dim.
"""

from keras import ops

from keras_sa.ops import softmax


def why_not(arguments):
    """The portable path does everything."""
    return None


def forward(arguments):
    a = arguments
    batch_size, _, num_heads, head_dim = ops.shape(a.query)
    num_new, num_neighbors = ops.shape(a.neighbors)
    num_kv_heads, value_dim = a.value.shape[2], a.value.shape[3]
    group = num_heads // num_kv_heads
    dtype = softmax.compute_dtype(a.query.dtype)
    rows = ops.reshape(ops.maximum(a.neighbors, 0), (-1,))  # [T * m]

    def gather(x):
        x = ops.cast(ops.take(x, rows, axis=1), dtype)
        features = x.shape[3]
        shape = (batch_size, num_new, num_neighbors, num_kv_heads, features)
        return ops.transpose(ops.reshape(x, shape), (0, 1, 3, 2, 4))

    shape = (batch_size, num_new, num_kv_heads, group, head_dim)
    query = ops.cast(ops.reshape(a.query, shape), dtype)
    scores = softmax.score(
        query, gather(a.key), a.scale, a.attn_logits_soft_cap
    )
    if a.alibi_slopes is not None:
        slopes = ops.reshape(a.alibi_slopes, (num_kv_heads, group, 1))
        position = ops.cast(a.neighbors, dtype)[:, None, None, :]
        scores = scores + ops.cast(slopes, dtype) * position
    sinks = None
    if a.sinks is not None:
        sinks = ops.reshape(a.sinks, (num_kv_heads, group, 1))
        sinks = ops.cast(sinks, dtype)
    visible = a.neighbors[:, None, None, :] >= 0  # [T, 1, 1, m]
    output, _ = softmax.attend(
        scores,  # [B, T, K, G, m]
        gather(a.value),  # [B, T, K, m, E]
        softmax.bias_of(visible, dtype),
        sees_something=ops.any(visible, axis=-1, keepdims=True),
        sinks=sinks,
    )
    output = ops.reshape(output, (batch_size, num_new, num_heads, value_dim))
    return ops.cast(output, a.value.dtype)
