"""How much of a small world an attention graph is.

Letters: `n` nodes, `m` edges, `k` mean degree.
"""

import dataclasses

import networkx as nx
import numpy as np
import scipy.sparse

from keras_sa import _validation
from keras_sa.analysis import undirected
from keras_sa.analysis.graphs import attention_graph

REFERENCES = ("random", "degrees")
# Rounds of rewiring in networkx's references.
_REWIRINGS = 5


@dataclasses.dataclass(frozen=True)
class SmallWorldMeasures:
    """What `small_world_measures` found, of the graph without directions.

    Attributes:
        length: nodes `n`.
        num_edges: pairs of different tokens of which one attends to the
            other.
        degree: mean number of neighbors of a node.
        density: fraction of all pairs that are edges.
        clustering, clustering_error: mean over nodes of the fraction of pairs
            of neighbors that are neighbors, and its standard error; an error is
            0 where nothing was sampled.
        transitivity: that fraction among the pairs of all nodes.
        path_length, path_length_error: mean length of the shortest path
            between two nodes that have one, and its standard error.
        connected: fraction of pairs that have a path.
        diameter: the longest shortest path that was seen: exact if all nodes
            were searched from, else a lower bound.
        random_clustering, random_path_length: of the random references.
        lattice_clustering: of the lattice reference.
        sigma: small-worldness
            `(transitivity / random) / (path_length / random)`: far above 1 in
            a small world.
        omega: `random / path_length - clustering / lattice`: near 0 in a
            small world, towards -1 in a lattice, 1 in a random graph.
    """

    length: int
    num_edges: int
    degree: float
    density: float
    clustering: float
    clustering_error: float
    transitivity: float
    path_length: float
    path_length_error: float
    connected: float
    diameter: int
    random_clustering: float
    random_path_length: float
    lattice_clustering: float
    sigma: float
    omega: float


def small_world_measures(
    source,
    length=None,
    is_causal=None,
    references="random",
    num_references=1,
    num_sources=None,
    seed=0,
    progress=None,
):
    """Degree, clustering, path lengths and small-worldness of a graph.

    The graph of all layers of a stack together, directions left out. Up to
    2,048 nodes everything is exact; above, paths are searched from a sample of
    nodes, and clustering is sampled in graphs of many edges.

    Args:
        source: as in `keras_sa.analysis.as_patterns`, or a sparse graph
            `[n, n]`, such as a connectome.
        length: tokens `n`; not for a graph.
        is_causal: as in `as_patterns`; not for a graph.
        references: `"random"`: random graphs with as many nodes and edges,
            and the ring lattice of the same mean degree; or `"degrees"`: the
            references of networkx, which keep the degree of every node by
            rewiring, as far as five rounds of it go. They take 20 seconds at
            100 nodes and need a connected graph.
        num_references: int: over how many random graphs to take the mean.
        num_sources: int: from how many nodes to search paths. Default: all of
            up to 2,048, else 256.
        seed: int, of samples and references.
        progress: optional function of `(steps done, steps in all)`.

    Returns:
        `SmallWorldMeasures`.

    Raises:
        ValueError: if an argument is not as above, or for a graph without
            edges.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import SlidingWindow
    >>> from keras_sa.patterns import Stochastic
    >>> window = SlidingWindow(9)
    >>> round(analysis.small_world_measures(window, 500).path_length)
    42
    >>> both = (Stochastic(5) | SlidingWindow(5)).bind(seed=1)
    >>> measures = analysis.small_world_measures(both, 500)
    >>> round(measures.path_length)
    4
    >>> measures.clustering > 10 * measures.random_clustering
    True

    Reference:
        Watts and Strogatz 1998, https://doi.org/10.1038/30918; sigma:
        Humphries and Gurney 2008,
        https://doi.org/10.1371/journal.pone.0002051; omega: Telesford et al.
        2011, https://doi.org/10.1089/brain.2011.0038
    """
    _validation.check_one_of("references", references, REFERENCES)
    _validation.check_positive_int("num_references", num_references)
    graph = undirected.undirected(_as_graph(source, length, is_causal))
    if graph.nnz == 0:
        raise ValueError(
            "A graph is expected to have edges. Received: a graph of "
            f"{graph.shape[0]} nodes without any"
        )
    is_random = references == "random"
    steps = _Steps(progress, 1 + num_references * is_random)
    clustering, transitivity = undirected.clustering(graph, seed)
    paths = undirected.distances(graph, num_sources, seed, steps)
    if is_random:
        compared = _against_random_graphs(
            graph,
            clustering.value,
            transitivity.value,
            paths.path_length.value,
            [
                _random_path_length(graph, num_sources, seed + number, steps)
                for number in range(1, num_references + 1)
            ],
        )
    else:
        compared = _against_rewired_graphs(graph, num_references, seed)
    num_nodes, num_edges = graph.shape[0], graph.nnz // 2
    return SmallWorldMeasures(
        length=num_nodes,
        num_edges=num_edges,
        degree=2 * num_edges / num_nodes,
        density=_density(graph),
        clustering=clustering.value,
        clustering_error=clustering.standard_error,
        transitivity=transitivity.value,
        path_length=paths.path_length.value,
        path_length_error=paths.path_length.standard_error,
        connected=paths.connected,
        diameter=paths.diameter,
        **compared,
    )


def _as_graph(source, length, is_causal):
    is_graph = scipy.sparse.issparse(source)
    if is_graph and (length is not None or is_causal is not None):
        raise ValueError(
            "A graph is expected to come without `length` and `is_causal`. "
            f"Received: length={length}, is_causal={is_causal}"
        )
    return source if is_graph else attention_graph(source, length, is_causal)


class _Steps:
    """Hands progress on, over several measurements one after the other."""

    def __init__(self, progress, num_parts):
        self.progress, self.num_parts, self.finished = progress, num_parts, 0

    def __call__(self, done, total):
        if self.progress is not None:
            steps = self.finished * total + done
            self.progress(steps, self.num_parts * total)
        self.finished += done == total


def _density(graph):
    num_nodes = graph.shape[0]
    return graph.nnz / (num_nodes * (num_nodes - 1))


def _random_path_length(graph, num_sources, seed, progress):
    reference = random_graph(graph.shape[0], graph.nnz // 2, seed)
    paths = undirected.distances(reference, num_sources, seed, progress)
    return paths.path_length.value


def _against_random_graphs(
    graph, clustering, transitivity, path_length, random_path_lengths
):
    # Of random edges, any two neighbors share one with this probability.
    random_clustering = _density(graph)
    random_path_length = float(np.mean(random_path_lengths))
    lattice = ring_clustering(graph.nnz / graph.shape[0], graph.shape[0])
    return {
        "random_clustering": random_clustering,
        "random_path_length": random_path_length,
        "lattice_clustering": lattice,
        "sigma": transitivity
        / random_clustering
        / (path_length / random_path_length),
        "omega": random_path_length / path_length
        - _divide(clustering, lattice),
    }


def _divide(x, y):
    return x / y if y else float("nan")


def _against_rewired_graphs(graph, num_references, seed):
    whole = nx.from_scipy_sparse_array(graph)
    if not nx.is_connected(whole) or len(whole) < 4:
        raise ValueError(
            "references='degrees' expects a connected graph of at least 4 "
            f"nodes. Received: {len(whole)} nodes in "
            f"{nx.number_connected_components(whole)} parts"
        )
    options = {"niter": _REWIRINGS, "nrand": num_references, "seed": seed}
    random = nx.random_reference(whole, niter=_REWIRINGS, seed=seed)
    lattice = nx.lattice_reference(whole, niter=_REWIRINGS, seed=seed)
    return {
        "random_clustering": nx.transitivity(random),
        "random_path_length": nx.average_shortest_path_length(random),
        "lattice_clustering": nx.average_clustering(lattice),
        "sigma": nx.sigma(whole, **options),
        "omega": nx.omega(whole, **options),
    }


def random_graph(num_nodes, num_edges, seed=0):
    """A graph of as many edges between random pairs of nodes.

    Args:
        num_nodes: int.
        num_edges: int up to the number of pairs.
        seed: int.

    Returns:
        As `undirected.undirected`.
    """
    generator = np.random.default_rng(seed)
    num_pairs = num_nodes * (num_nodes - 1) // 2
    pair = generator.choice(num_pairs, num_edges, replace=False, shuffle=False)
    # Pair `(row, column)` with `row > column` is number
    # `row * (row - 1) / 2 + column`.
    row = ((1 + np.sqrt(1 + 8.0 * pair)) / 2).astype("int64")
    row -= row * (row - 1) // 2 > pair  # of roots that were rounded
    row += row * (row + 1) // 2 <= pair
    column = pair - row * (row - 1) // 2
    edges = (np.ones(num_edges, bool), (row, column))
    shape = (num_nodes, num_nodes)
    return undirected.undirected(scipy.sparse.coo_array(edges, shape))


def ring_clustering(degree, num_nodes):
    """The clustering of a ring in which each node has its nearest neighbors.

    Args:
        degree: number of neighbors `k`; what is between even numbers is
            filled in.
        num_nodes: `n`.
    """
    if degree >= num_nodes - 1:
        return 1.0
    reach, rest = divmod(degree / 2, 1)
    return (1 - rest) * _ring_clustering(int(reach), num_nodes) + (
        rest * _ring_clustering(int(reach) + 1, num_nodes) if rest else 0
    )


def _ring_clustering(reach, num_nodes):
    """With `reach` neighbors on either side."""
    if 2 * reach + 1 >= num_nodes:
        return 1.0
    if reach < 1:
        return 0.0
    distance = np.arange(1, reach + 1)
    # Of both nodes the neighbors, themselves among them; also around.
    shared = 2 * reach + 1 - distance
    around = np.maximum(2 * reach + 1 + distance - num_nodes, 0)
    return float(np.mean(shared + around - 2) / (2 * reach - 1))
