"""Attentions with as many neighbors as a graph has."""

from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


def stacks_of_degree(degree, seed=0):
    """Stacks whose union has, in the mean, as many neighbors of a token.

    Windows are odd, which reach as far to both sides. Half of the neighbors
    come from each of two windows, as near as can be.

    Args:
        degree: even int of at least 4.
        seed: int of at most 32 bits, of the permutations.

    Returns:
        `{name: list of BoundPattern}`: a sliding window, stochastic attention
        in two layers, and one layer of a small world.
    """
    reach = degree // 2
    small = 2 * (reach // 2) + 1
    large = 2 * (reach - reach // 2) + 1
    return {
        "sliding_window": [SlidingWindow(degree + 1).bind()],
        "stochastic": [
            Stochastic(small).bind(seed=seed),
            Stochastic(large).bind(seed=(seed + 1) % 2**32),
        ],
        "small_world": [
            (Stochastic(large) | SlidingWindow(small)).bind(seed=seed)
        ],
    }
