"""Means over tokens from a sample of them.

Letters: `n` tokens in all, `S` tokens of the sample.
"""

import numpy as np

from keras_sa import _validation


def choose(name, num_chosen, num_all, seed):
    """Some of `0 .. n - 1`, at random without replacement, in order.

    Args:
        name: of the argument that says how many, for errors.
        num_chosen: int `S` up to `n`.
        num_all: int `n`.
        seed: int.

    Returns:
        int64 `[S]`.

    Raises:
        ValueError: if `num_chosen` is not as above.
    """
    _validation.check_positive_int(name, num_chosen)
    if num_chosen > num_all:
        raise ValueError(
            f"`{name}` is expected to be at most length={num_all}. "
            f"Received: {name}={num_chosen}"
        )
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(num_all, num_chosen, replace=False))


def ratio_of_sums(values, counts, num_all):
    """The sum of values over that of counts, as an estimate over all tokens.

    Args:
        values: `[..., S]`.
        counts: `[S]`, not all 0.
        num_all: int `n`.

    Returns:
        The ratio `[...]` and its standard error, 0 if all tokens are there.
    """
    num = len(counts)
    ratio = values.sum(axis=-1) / counts.sum()
    deviation = values - np.expand_dims(ratio, -1) * counts
    left_out = 1 - num / num_all
    variance = left_out * (deviation**2).sum(axis=-1) / max(num - 1, 1)
    return ratio, np.sqrt(variance / num) / counts.mean()
