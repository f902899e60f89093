"""The small-world curve, of attentions and of rewired rings.

Letters: `n` nodes, `P` fractions.
"""

import dataclasses

import networkx as nx
import numpy as np

from keras_sa.analysis import small_world_measures
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


@dataclasses.dataclass(frozen=True)
class SmallWorldCurve:
    """Measures against the fraction of edges that are shortcuts.

    Attributes:
        length: nodes `n`.
        degree: neighbors of a node, in the mean.
        fractions: `[P]`, from 0, the lattice, to 1.
        measures: `SmallWorldMeasures` of each.
    """

    length: int
    degree: int
    fractions: np.ndarray
    measures: tuple

    @property
    def path_length(self):
        """`[P]`: mean length of the shortest paths."""
        return np.array([x.path_length for x in self.measures])

    @property
    def clustering(self):
        """`[P]`: mean clustering coefficients."""
        return np.array([x.clustering for x in self.measures])


def small_world_curve(length, degree, num_sources=None, seed=0, progress=None):
    """From a sliding window to random edges, at the same number of edges.

    A layer with a sliding window, and of its `degree // 2` neighbors on
    either side more and more are given to windows of 3 slots, each over a
    random permutation of its own: one, two, ... layers of stochastic
    attention. The curve that Watts and Strogatz drew for rewired edges is made
    of attention.

    Args:
        length: tokens `n`.
        degree: even int: neighbors of a token; less than `n`.
        num_sources: as in `small_world_measures`.
        seed: int, of the permutations and the samples.
        progress: optional function of `(steps done, steps in all)`.

    Returns:
        A `SmallWorldCurve` of `degree // 2 + 1` points.

    Reference:
        Watts and Strogatz 1998, https://doi.org/10.1038/30918
    """
    reach = degree // 2
    measures = []
    for number in range(reach + 1):
        stack = _window_and_shortcuts(reach - number, number, seed)
        measures.append(
            small_world_measures(
                stack, length, num_sources=num_sources, seed=seed
            )
        )
        if progress is not None:
            progress(number + 1, reach + 1)
    fractions = np.arange(reach + 1) / reach
    return SmallWorldCurve(length, degree, fractions, tuple(measures))


def watts_strogatz_curve(length, degree, fractions, num_sources=None, seed=0):
    """The curve of rewired rings of networkx, to compare with.

    Args:
        length: nodes `n`.
        degree: even int: neighbors of a node; less than `n`.
        fractions: floats from 0 to 1: with what probability an edge is rewired.
        num_sources: as in `small_world_measures`.
        seed: int, of the rewiring and the samples.

    Returns:
        A `SmallWorldCurve` of as many points as `fractions`.

    Reference:
        Watts and Strogatz 1998, https://doi.org/10.1038/30918
    """
    measures = [
        small_world_measures(
            nx.to_scipy_sparse_array(
                nx.watts_strogatz_graph(length, degree, fraction, seed=seed)
            ),
            num_sources=num_sources,
            seed=seed,
        )
        for fraction in fractions
    ]
    return SmallWorldCurve(length, degree, np.array(fractions), tuple(measures))


def _window_and_shortcuts(reach, num_shortcuts, seed):
    """A window of `reach` to both sides, and random windows of 1."""
    window = [SlidingWindow(2 * reach + 1).bind()] if reach else []
    return window + [
        Stochastic(3).bind(seed=(seed + number) % 2**32)
        for number in range(num_shortcuts)
    ]
