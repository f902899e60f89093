"""Attention of tiles to blocks on CPUs, some tiles at a time.

What is as large as the scores lives in a cache for a moment: XLA fetches the
memory of a whole program anew for every run, which takes longer than computing
the weights again for the gradient.

Letters: as in `tiled_attention.py`; `p` pieces of `s` tiles.
"""

import jax
import jax.numpy as jnp

# Scores at a time: 1 MB of float32.
_SCORES = 2**18


def takes(query, row):
    """On a GPU all tiles are computed at once."""
    return jax.default_backend() == "cpu" and isinstance(row.shape[0], int)


@jax.custom_vjp
def attend(query, key, value, row, block, bias):
    """As `tiled_attention.attend_to_tiles`.

    Args:
        query: `[L, D]`, times the scale.
        bias: float, broadcasts to `[t, T, b]`, or `None`.
    """
    pieces = _pieces(key, row, block, bias)

    def attend_to_some(piece):
        row, block, own_bias = piece
        bias_ = bias if own_bias is None else own_bias
        scores = _scores(query[row], key[block], bias_)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        if bias_ is not None:
            highest = jnp.maximum(highest, jnp.finfo(scores.dtype).min / 4)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        return highest, total, weights @ value[block]

    results = jax.lax.map(attend_to_some, pieces)
    return tuple(_join(x, row) for x in results)


def _forward(query, key, value, row, block, bias):
    results = attend(query, key, value, row, block, bias)
    return results, (query, key, value, row, block, bias, results[0])


def _backward(saved, gradients):
    query, key, value, row, block, bias, highest = saved
    pieces = _pieces(key, row, block, bias, highest, *gradients[1:])

    def add(sums, piece):
        query_grad, key_grad, value_grad = sums
        row, block, own_bias, highest, total_grad, weighted_grad = piece
        queries, keys, values = query[row], key[block], value[block]
        bias_ = bias if own_bias is None else own_bias
        weights = jnp.exp(_scores(queries, keys, bias_) - highest)
        of_values = jnp.einsum("tqk,tqe->tke", weights, weighted_grad)
        of_weights = jnp.einsum("tqe,tke->tqk", weighted_grad, values)
        of_scores = weights * (of_weights + total_grad)
        of_keys = jnp.einsum("tqk,tqd->tkd", of_scores, queries)
        return (
            query_grad.at[row].add(of_scores @ keys),
            key_grad.at[block].add(of_keys),
            value_grad.at[block].add(of_values),
        ), None

    zeros = tuple(jnp.zeros_like(x) for x in (query, key, value))
    sums, _ = jax.lax.scan(add, zeros, pieces)
    return *sums, None, None, None


attend.defvjp(_forward, _backward)


def _scores(queries, keys, bias):
    scores = jnp.einsum("tqd,tkd->tqk", queries, keys)
    return scores if bias is None else scores + bias


def _pieces(key, row, block, bias, *others):
    """What belongs to each tile, `[t, ...]`, as `[p, s, ...]`.

    The bias is `None` there if it is the same for all tiles. What fills the
    last piece has gradients of zero.
    """
    if bias is not None and bias.shape[0] == 1:
        bias = None
    num_tiles, num_rows = row.shape
    most = max(_SCORES // (num_rows * key.shape[1]), 1)
    num_pieces = -(-num_tiles // most)
    size = -(-num_tiles // num_pieces)

    def cut(x):
        missing = num_pieces * size - num_tiles
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(num_pieces, size, *x.shape[1:])

    return jax.tree.map(cut, (row, block, bias, *others))


def _join(x, row):
    """`[p, s, ...]` as `[t, ...]`."""
    return x.reshape(-1, *x.shape[2:])[: row.shape[0]]
