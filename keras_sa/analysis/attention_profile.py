"""What the heads of a layer do with their attention: how far, how evenly.

Letters: `B` batch, `n` tokens, `H` heads, `S` steps of distance.
"""

import dataclasses

import numpy as np

from keras_sa import _validation
from keras_sa.patterns import window_reach


@dataclasses.dataclass(frozen=True)
class AttentionProfile:
    """How the heads of a layer attend. Means over the rows with weight.

    All but `total` are of the fractions of a row: its weights over their sum.

    Attributes:
        window_size: int, of `local_mass`.
        entropy: `[H]` in nats: 0 for one key, log(m) for m keys alike.
        evenness: `[H]`: the entropy over that of as many keys alike, from 0
            to 1; of all rows together.
        mean_distance: `[H]` in tokens, `|i - j|` as the weights have it.
        local_mass: `[H]`: the fraction of weight inside the sliding window of
            `window_size`.
        mass_by_distance: `[H, S]`: the fraction of weight at each step of
            distance; sums to 1.
        distances: `[S]`: where the steps begin: 0, 1, 2, 4, 8, ... tokens.
        total: `[H]`: what the weights of a row sum to: 1, less with sinks,
            and with gates the sum of these.
    """

    window_size: int
    entropy: np.ndarray
    evenness: np.ndarray
    mean_distance: np.ndarray
    local_mass: np.ndarray
    mass_by_distance: np.ndarray
    distances: np.ndarray
    total: np.ndarray


def attention_profile(weights, window_size, is_causal=True):
    """Entropy and reach of the attention weights of a layer, for each head.

    Rows without any weight, such as padding, are left out.

    Args:
        weights: `[B, H, n, n]`, not negative: how much row i attends to column
            j, as `keras_sa.hub.measure_attention` hands over, or the scores
            of a Keras attention layer.
        window_size: tokens in the sliding window that `local_mass` is about,
            the token's own included.
        is_causal: whether that window is causal: tokens `i - w + 1 .. i`,
            else `i - w // 2 .. i + (w - 1) // 2`. The weights are taken as
            they are.

    Returns:
        An `AttentionProfile`.

    Raises:
        ValueError: for weights of another shape, that are negative or not
            finite, or of which a head has none at all.

    Example:

    >>> import numpy as np
    >>> from keras_sa import analysis
    >>> alike = np.tri(4) / np.arange(1, 5)[:, None]  # full causal attention
    >>> profile = analysis.attention_profile(alike[None, None], 2)
    >>> profile.entropy.round(3), profile.mean_distance
    (array([0.795]), array([0.75]))
    """
    weights = _check_weights(weights)
    _validation.check_positive_int("window_size", window_size)
    length = weights.shape[-1]
    position = np.arange(length)
    offset = position[:, None] - position[None, :]
    left, right = window_reach(window_size, is_causal)
    is_local = (offset <= left) & (offset >= -right)
    step = _steps(np.abs(offset))
    heads = [
        _of_head(weights[:, head], offset, is_local, step)
        for head in range(weights.shape[1])
    ]
    return AttentionProfile(
        window_size=window_size,
        distances=np.r_[0, 2 ** np.arange(step.max())],
        **{name: np.stack([head[name] for head in heads]) for name in heads[0]},
    )


def _of_head(weights, offset, is_local, step):
    """The fields of a profile for one head `[B, n, n]`."""
    total = weights.sum(axis=-1, dtype="float64")
    has_weight = total > 0
    # Rows of all examples `[rows, n]`, and the query's place of each.
    fractions = weights[has_weight] / total[has_weight][:, None]
    row = np.nonzero(has_weight)[1]
    mass = _sum_by_row(fractions, row, len(offset))  # [n, n], sums to 1
    entropies = -np.sum(
        fractions * np.log(np.where(fractions > 0, fractions, 1)), -1
    )
    most = np.sum(np.log(np.count_nonzero(fractions, axis=-1)))
    return {
        "entropy": np.mean(entropies),
        "evenness": np.sum(entropies) / most if most else 0.0,
        "mean_distance": np.sum(mass * np.abs(offset)),
        "local_mass": np.sum(mass[is_local]),
        "mass_by_distance": np.bincount(step.ravel(), mass.ravel()),
        "total": np.mean(total[has_weight]),
    }


def _sum_by_row(fractions, row, length):
    """The mean fraction of each pair over all rows, `[n, n]`."""
    mass = np.zeros((length, length))
    np.add.at(mass, row, fractions)
    return mass / len(row)


def _steps(distance):
    """The step of each distance: 0, 1, 2-3, 4-7, ... are 0, 1, 2, 3, ..."""
    return np.frexp(distance)[1]  # d is m * 2**e with m from 1/2 to below 1


def _check_weights(weights):
    weights = np.asarray(weights)
    shape = weights.shape
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        raise ValueError(
            "`weights` is expected to be `[batch, heads, n, n]`. "
            f"Received: shape {shape}"
        )
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError(
            "`weights` is expected to be finite and not negative: attention "
            "after the softmax. Received: weights from "
            f"{weights.min()} to {weights.max()}"
        )
    is_empty = ~np.any(weights, axis=(0, 2, 3))
    if np.any(is_empty):
        raise ValueError(
            "`weights` is expected to have a row with weight for every head. "
            f"Received: none for heads {np.nonzero(is_empty)[0].tolist()}"
        )
    return weights
