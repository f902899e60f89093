"""Clustering and distances of undirected graphs.

Letters: `n` nodes, `S` nodes of a sample, `k` degree.
"""

import dataclasses

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from keras_sa import _validation
from keras_sa.analysis import sampling

# Steps of two edges at a time, and in all before nodes are sampled.
_STEPS_AT_A_TIME, _STEPS = 2**22, 2**30
# Nodes up to which distances are measured from all, and of a sample.
_EXACT, _SAMPLED = 2**11, 256
# From how many of the farthest nodes the diameter is looked for.
_SWEEPS = 4


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over nodes and its standard error, 0 if all nodes are in it."""

    value: float
    standard_error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Distances:
    """Lengths of shortest paths.

    Attributes:
        path_length: `Estimate` of the mean over pairs that have a path.
        diameter: the longest that was seen: at most the true one.
        connected: fraction of pairs that have a path.
    """

    path_length: Estimate
    diameter: int
    connected: float


def undirected(graph):
    """A graph without directions and loops, float64 as `csgraph` wants it.

    Args:
        graph: sparse `[n, n]`; whatever is not 0 is an edge.

    Returns:
        `scipy.sparse.csr_array` `[n, n]` of ones.
    """
    graph = scipy.sparse.csr_array(graph, dtype=bool)
    if graph.shape[0] != graph.shape[1]:
        raise ValueError(
            "A graph is expected to be a square matrix. "
            f"Received: shape {graph.shape}"
        )
    both = scipy.sparse.coo_array(graph + graph.T)
    row, column = both.coords
    is_edge = both.data & (row != column)
    ones = np.ones(np.count_nonzero(is_edge))
    edges = (ones, (row[is_edge], column[is_edge]))
    return scipy.sparse.csr_array(edges, graph.shape)


def degrees(graph):
    """Number of neighbors of each node `[n]`."""
    return np.diff(graph.indptr)


def clustering(graph, seed=0):
    """Which pairs of neighbors of a node are neighbors themselves.

    With more than about 2**30 steps of two edges, a sample of nodes is taken.

    Args:
        graph: of `undirected`.
        seed: int, of the sample.

    Returns:
        Two `Estimate`: the clustering coefficient, the mean over nodes of the
        fraction of such pairs, where nodes with fewer than two neighbors count
        0; and the transitivity, the fraction among the pairs of all nodes.
    """
    num_nodes = graph.shape[0]
    degree = degrees(graph).astype(float)
    steps = graph @ degree  # of two edges, from each node
    fraction = min(1.0, _STEPS / max(steps.sum(), 1))
    nodes = _sample(num_nodes, max(int(fraction * num_nodes), 1), seed)
    pairs = degree[nodes] * (degree[nodes] - 1)
    triangles = _closed_steps(graph, nodes, steps)
    values = np.divide(
        triangles, pairs, out=np.zeros(len(nodes)), where=pairs > 0
    )
    return (
        _ratio(values, np.ones(len(nodes)), num_nodes),
        _ratio(triangles, pairs, num_nodes),
    )


def _closed_steps(graph, nodes, steps):
    """For each node `[S]`, steps of two edges that end at a neighbor."""
    closed = []
    parts = np.cumsum(steps[nodes]) // _STEPS_AT_A_TIME
    for rows in np.split(nodes, np.flatnonzero(np.diff(parts)) + 1):
        edges = graph[rows]
        closed.append((edges @ graph).multiply(edges).sum(axis=1))
    return np.concatenate(closed)


def distances(graph, num_sources=None, seed=0, progress=None):
    """Lengths of shortest paths from all nodes, or from a sample.

    The diameter is looked for from the farthest nodes as well.

    Args:
        graph: of `undirected`.
        num_sources: int up to `n`. Default: all nodes of up to 2,048, else
            256.
        seed: int, of the sample.
        progress: optional function of `(steps done, steps in all)`.

    Returns:
        `Distances`.
    """
    num_nodes = graph.shape[0]
    if num_sources is None:
        num_sources = num_nodes if num_nodes <= _EXACT else _SAMPLED
    _validation.check_positive_int("num_sources", num_sources)
    sources = _sample(num_nodes, min(num_sources, num_nodes), seed)
    searches = []
    for number, source in enumerate(sources, start=1):
        searches.append(_search(graph, source))
        if progress is not None:
            progress(number, len(sources))
    reached = np.array([search.num_reached for search in searches])
    total = np.array([search.total for search in searches])
    diameter = max(search.eccentricity for search in searches)
    if len(sources) < num_nodes:
        farthest = max(searches, key=lambda search: search.eccentricity)
        diameter = max(diameter, _sweep(graph, farthest.last))
    return Distances(
        path_length=_ratio(total, reached, num_nodes),
        diameter=int(diameter),
        connected=float(reached.mean() / max(num_nodes - 1, 1)),
    )


@dataclasses.dataclass(frozen=True)
class _Search:
    """From one node: how many others it reached, the sum of their distances,
    the largest, and a node that far."""

    num_reached: int
    total: int
    eccentricity: int
    last: int


def _search(graph, source):
    order, predecessor = csgraph.breadth_first_order(graph, source)
    place = np.empty(graph.shape[0], "int64")
    place[order] = np.arange(len(order))
    # Of the node before: it never falls, so that every distance is a run.
    came_from = place[predecessor[order[1:]]]
    ends = [1]
    while ends[-1] < len(order):
        ends.append(1 + int(np.searchsorted(came_from, ends[-1])))
    total = sum(len(order) - end for end in ends)
    return _Search(len(order) - 1, total, len(ends) - 1, int(order[-1]))


def _sweep(graph, node):
    """The largest distance that is seen from far node to far node."""
    largest = 0
    for _ in range(_SWEEPS):
        search = _search(graph, node)
        largest, node = max(largest, search.eccentricity), search.last
    return largest


def _sample(num_nodes, size, seed):
    return sampling.choose("num_sources", size, num_nodes, seed)


def _ratio(values, counts, num_nodes):
    """`Estimate` of the sum of values over the sum of counts."""
    if counts.sum() == 0:
        return Estimate(float("nan"), float("nan"))
    value, error = sampling.ratio_of_sums(values, counts, num_nodes)
    return Estimate(float(value), float(error))
