"""How many keys a token attends to: the budget to compare patterns at.

A pair of tokens is visible by what is fixed, or with a probability by the
permutations: independent ones, and each the same for all pairs. So the
expected size of a union follows from a count of the fixed pairs.

Letters: `n` tokens, `T` tokens that attend, `m` places in a list.
"""

import numpy as np
from keras import ops

from keras_sa.patterns import lists

# Entries of lists at a time.
_ENTRIES = 2**24
# Of a random pattern that does not know its probabilities.
_SEEDS = 16


def window_pairs(length, reach, dilation=1):
    """Pairs of tokens, each with itself included, within a window."""
    return length + sum(_pairs_ahead(length, x, dilation) for x in reach)


def _pairs_ahead(length, reach, dilation):
    """Pairs at distance d, 2 d .. reach * d, in one direction."""
    reach = min(reach, max(length - 1, 0) // dilation)
    return reach * length - dilation * reach * (reach + 1) // 2


def keys_per_token(parts, length, is_causal):
    """The mean number of keys in the union of parts, each once.

    Args:
        parts: `Pattern`s.
        length: `n`.
        is_causal: whether a token attends to no later token.
    """
    if length == 0:
        return 0.0
    probabilities = [part.pair_probability(length) for part in parts]
    fixed = [x for x, p in zip(parts, probabilities) if p is None]
    missed = np.prod([1 - p for p in probabilities if p is not None])
    with_self = len(fixed) < len(parts)
    seeds = range(_SEEDS if any(x.is_random for x in fixed) else 1)
    counts = [
        _count(fixed, length, is_causal, with_self, seed) for seed in seeds
    ]
    count = float(np.mean(counts))
    everything = length * (length + 1) / 2 if is_causal else length**2
    return float((count + (everything - count) * (1 - missed)) / length)


def _count(parts, length, is_causal, with_self, seed):
    """How many pairs are visible in one of the parts."""
    rows = np.zeros(length, bool)  # those that attend to everybody
    slices = [part.dense_rows(length) for part in parts]
    for dense in slices:
        if dense is not None:
            rows[dense] = True
    position = np.arange(length)
    total = np.where(is_causal, position + 1, length)[rows].sum()
    listed = [part for part, dense in zip(parts, slices) if dense is None]
    others = position[~rows].astype("int32")
    if not listed:
        return total + with_self * len(others)
    width = sum(_width(part, length, is_causal, seed) for part in listed)
    step = max(_ENTRIES // max(width, 1), 1)
    for start in range(0, len(others), step):
        chunk = others[start : start + step]
        total += _count_chunk(chunk, listed, length, is_causal, with_self, seed)
    return total


def _width(part, length, is_causal, seed):
    first = ops.zeros((1,), dtype="int32")
    return lists.neighbors_of(
        part, length, is_causal=is_causal, seed=seed, positions=first
    ).shape[-1]


def _count_chunk(chunk, parts, length, is_causal, with_self, seed):
    positions = ops.convert_to_tensor(chunk)
    neighbors = [
        lists.neighbors_of(
            part, length, is_causal=is_causal, seed=seed, positions=positions
        )
        for part in parts
    ]
    if with_self:
        neighbors.append(positions[:, None])
    neighbors = lists.distinct(lists.together(neighbors))
    visible = lists.as_numpy(neighbors) >= 0
    heads = visible.shape[0] if visible.ndim == 3 else 1
    return visible.sum() / heads
