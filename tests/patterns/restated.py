"""The patterns once more, in plain numpy: what a mask has to be."""

import functools

import keras
import numpy as np
from keras import ops

from keras_sa import patterns


def window(distance, size, is_causal, step=1):
    """Whether keys so far back are among `size` tokens, as design.md says."""
    left, right = (size - 1, 0) if is_causal else (size // 2, (size - 1) // 2)
    steps, rest = np.divmod(distance, step)
    return (rest == 0) & (steps <= left) & (steps >= -right)


def mask_of(pattern, length, is_causal, seed=0, heads=1):
    """Boolean `[K, n, n]`.

    Args:
        seed: what the pattern is drawn with; or a generator of numpy, for
            permutations of which only the distribution is the same.
    """
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    name = type(pattern).__name__
    if name in ("Union", "GatedSum"):
        members = pattern.members
        is_generator = isinstance(seed, np.random.Generator)
        seeds = [seed] * len(members) if is_generator else pattern.seeds(seed)
        masks = [
            mask_of(member, length, is_causal, own, heads)
            for member, own in zip(members, seeds)
        ]
        return functools.reduce(np.logical_or, masks)
    if name == "Full":
        mask = np.ones((length, length), bool)
    elif name == "SlidingWindow":
        size, step = pattern.window_size, pattern.dilation
        mask = window(i - j, size, is_causal, step)
    elif name == "GlobalKeys":
        mask = np.broadcast_to(j < pattern.first, (length, length))
    elif name == "GlobalQueries":
        row = i < pattern.first if pattern.first else i >= length - pattern.last
        mask = np.broadcast_to(row, (length, length))
    elif name == "Stochastic":
        mask = np.stack(
            [
                _stochastic(np.argsort(permutation), pattern)
                for permutation in _permutations(pattern, length, seed, heads)
            ]
        )
    mask = mask & (j <= i) if is_causal else mask
    return np.broadcast_to(mask, (heads, length, length))


def _permutations(pattern, length, seed, heads):
    per_head = {}
    if pattern.permutation_per == "head":
        per_head["num_key_value_heads"] = heads
    if isinstance(seed, np.random.Generator):
        rows = np.tile(np.arange(length), (heads if per_head else 1, 1))
        return seed.permuted(rows, axis=1)
    permutation = patterns.permutation.sample_permutation(
        length, seed, **per_head
    )
    return ops.convert_to_numpy(permutation).reshape(
        heads if per_head else 1, length
    )


def _stochastic(slot, pattern):
    if pattern.neighborhood == "block":
        block = slot // pattern.window_size
        return block[:, None] == block[None, :]
    distance = slot[:, None] - slot[None, :]
    return window(distance, pattern.window_size, is_causal=False)


def as_numpy(x):
    return np.asarray(keras.ops.convert_to_numpy(x))


def mask_of_list(neighbors, length):
    """Boolean `[..., T, n]`; fails for a key that stands there twice."""
    flat = neighbors.reshape(-1, neighbors.shape[-1])
    mask = np.zeros((len(flat), length), bool)
    for row, keys in zip(mask, flat):
        keys = keys[keys >= 0]
        assert len(set(keys)) == len(keys), "a key is listed twice"
        row[keys] = True
    return mask.reshape(*neighbors.shape[:-1], length)
