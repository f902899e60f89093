"""The fruit fly's brain as a graph. Imports no Keras."""

import dataclasses


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
