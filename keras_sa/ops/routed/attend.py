"""Attention of tiles of queries to one block of keys each.

Where a backend runs every operation by itself, or fetches memory anew for what
does not fit a cache, the tiles are computed a few at a time, and their weights
again for the gradient.

Letters: `L` queries, `C` blocks, `b` keys in a block, `D` head dim, `E` value
head dim, `t` tiles, `T` queries in a tile.
"""

import keras
import numpy as np
from keras import ops

from keras_sa import backend
from keras_sa.ops import ordering
from keras_sa.ops import softmax


def attend_to_tiles(
    query,
    key,
    value,
    row,
    block,
    visible=None,
    *,
    scale,
    attn_logits_soft_cap=None,
    drop=None,
):
    """Numerator and denominator of attention to some of a row's keys.

    Sums over disjoint sets of keys add up, each times `exp(highest)`. No
    gradient runs through `highest`, which cancels out in the quotient.

    Args:
        query: `[L, D]`, float32 or float64.
        key: `[C, b, D]` in the same dtype.
        value: `[C, b, E]` in the same dtype.
        row: int32 `[t, T]`: the queries of each tile.
        block: int32 `[t]`: the block that each tile reads, in ascending order.
        visible: boolean, broadcasts to `[t, T, b]`; `None` for all.
        scale: factor on the scores.
        attn_logits_soft_cap: optional `c` of `c * tanh(score / c)`.
        drop: optional function of the weights `[t, T, b]`: dropout.

    Returns:
        highest score `[t, T, 1]`, the sum of exp(score - highest) `[t, T, 1]`,
        and the same sum with a value each `[t, T, E]`. Both sums are 0 in a
        row that attends to nobody.
    """
    if attn_logits_soft_cap is None and drop is None:
        if backend.takes_tiles(query, row):
            return backend.attend_to_tiles(
                query * scale, key, value, row, block, visible
            )
    scores = softmax.score(
        ordering.take_rows(query, row),
        ops.take(key, block, axis=0),
        scale,
        attn_logits_soft_cap,
    )
    return _sums(scores, ops.take(value, block, axis=0), visible, drop)


def _sums(scores, value, visible, drop):
    lowest = float(np.finfo(keras.backend.standardize_dtype(scores.dtype)).min)
    if visible is not None:
        scores = ops.where(visible, scores, lowest)
    highest = ops.amax(ops.stop_gradient(scores), axis=-1, keepdims=True)
    if visible is not None:  # far above what is hidden
        highest = ops.maximum(highest, lowest / 2)
    weights = ops.exp(scores - highest)
    total = ops.sum(weights, axis=-1, keepdims=True)
    return highest, total, ops.matmul(drop(weights) if drop else weights, value)
