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
def attend(query, key, value, row, block, visible):
    """As `tiled_attention.attend_to_tiles`.

    Args:
        query: `[L, D]`, times the scale.
        visible: boolean, broadcasts to `[t, T, b]`, or `None`.
    """
    pieces = _pieces(key, row, block, visible)

    def attend_to_some(piece):
        row, block, own_visible = piece
        seen = visible if own_visible is None else own_visible
        scores = _scores(query[row], key[block], seen)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        if seen is not None:  # far above what is hidden
            highest = jnp.maximum(highest, jnp.finfo(scores.dtype).min / 2)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        return highest, total, weights @ value[block]

    results = jax.lax.map(attend_to_some, pieces)
    return tuple(_join(x, row) for x in results)


def _forward(query, key, value, row, block, visible):
    results = attend(query, key, value, row, block, visible)
    return results, (query, key, value, row, block, visible, results[0])


def _backward(saved, gradients):
    query, key, value, row, block, visible, highest = saved
    pieces = _pieces(key, row, block, visible, highest, *gradients[1:])

    def add(sums, piece):
        query_grad, key_grad, value_grad = sums
        row, block, own_visible, highest, total_grad, weighted_grad = piece
        queries, keys, values = query[row], key[block], value[block]
        seen = visible if own_visible is None else own_visible
        weights = jnp.exp(_scores(queries, keys, seen) - highest)
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


def _scores(queries, keys, visible):
    scores = jnp.einsum("tqd,tkd->tqk", queries, keys)
    if visible is None:
        return scores
    return jnp.where(visible, scores, jnp.finfo(scores.dtype).min)


def _pieces(key, row, block, visible, *others):
    """What belongs to each tile, `[t, ...]`, as `[p, s, ...]`.

    `visible` is `None` there if it is the same for all tiles. What fills the
    last piece has gradients of zero.
    """
    if visible is not None and visible.shape[0] == 1:
        visible = None
    num_tiles, num_rows = row.shape
    most = max(_SCORES // (num_rows * key.shape[1]), 1)
    num_pieces = -(-num_tiles // most)
    size = -(-num_tiles // num_pieces)

    def cut(x):
        missing = num_pieces * size - num_tiles
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(num_pieces, size, *x.shape[1:])

    return jax.tree.map(cut, (row, block, visible, *others))


def _join(x, row):
    """`[p, s, ...]` as `[t, ...]`."""
    return x.reshape(-1, *x.shape[2:])[: row.shape[0]]
