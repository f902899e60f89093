"""The fruit fly's brain as a graph, and attentions of its size."""

import dataclasses

from keras_sa import _validation
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


@dataclasses.dataclass(frozen=True)
class Connectome:
    """What was published of a connectome.

    Attributes:
        num_neurons: nodes.
        density: the fraction of pairs that are connected.
        path_length: mean length of the shortest paths.
        small_worldness: `sigma`, against random graphs of as many edges.
    """

    num_neurons: int
    density: float
    path_length: float
    small_worldness: float

    @property
    def degree(self):
        """Mean number of neighbors of a neuron."""
        return self.density * self.num_neurons


# The whole brain of Drosophila, as rounded in https://arxiv.org/abs/2604.00754;
# the small-worldness is that of Lin et al. 2024,
# https://doi.org/10.1038/s41586-024-07968-y.
FLY = Connectome(130_000, 0.0002, 4.4, 141.0)


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

    Raises:
        ValueError: for another degree.

    Example:

    >>> from keras_sa import analysis
    >>> stacks = analysis.stacks_of_degree(26)
    >>> [layer.pattern for layer in stacks["stochastic"]]
    [Stochastic(13), Stochastic(15)]
    """
    _validation.check_positive_int("degree", degree)
    if degree % 2 or degree < 4:
        raise ValueError(
            "`degree` is expected to be even and at least 4. "
            f"Received: degree={degree}"
        )
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
