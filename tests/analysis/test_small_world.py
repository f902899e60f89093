"""Small-world measures against networkx."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

from keras_sa import analysis
from keras_sa import patterns
from keras_sa.analysis import small_world
from keras_sa.analysis import undirected

STACKS = {
    "lattice": patterns.SlidingWindow(6),
    "causal": patterns.SlidingWindow(5).bind(is_causal=True),
    "stochastic": [patterns.Stochastic(3).bind(seed=1), patterns.Stochastic(4)],
    "causal_stochastic": patterns.Stochastic(7).bind(seed=1, is_causal=True),
    "small_world": (patterns.Stochastic(3) | patterns.SlidingWindow(5)).bind(
        seed=2
    ),
    "full": patterns.Full(),
}


def networkx_graph(source, length):
    """The union graph, without directions and loops."""
    graph = analysis.attention_graph(source, length)
    graph = nx.from_scipy_sparse_array(graph, create_using=nx.DiGraph)
    graph = graph.to_undirected()
    graph.remove_edges_from(nx.selfloop_edges(graph))
    return graph


@pytest.mark.parametrize("name", STACKS)
def test_measures_are_those_of_networkx(name):
    expected = networkx_graph(STACKS[name], 60)
    found = analysis.small_world_measures(STACKS[name], 60)
    assert nx.is_connected(expected)
    assert found.length == 60 and found.connected == 1.0
    assert found.num_edges == expected.number_of_edges()
    np.testing.assert_allclose(found.density, nx.density(expected))
    degree = np.mean([d for _, d in expected.degree])
    np.testing.assert_allclose(found.degree, degree)
    np.testing.assert_allclose(
        found.clustering, nx.average_clustering(expected)
    )
    np.testing.assert_allclose(found.transitivity, nx.transitivity(expected))
    np.testing.assert_allclose(
        found.path_length, nx.average_shortest_path_length(expected)
    )
    assert found.diameter == nx.diameter(expected)
    assert found.clustering_error == found.path_length_error == 0


def test_sigma_and_omega_against_the_random_graph_and_the_ring():
    found = analysis.small_world_measures(STACKS["small_world"], 60, seed=4)
    whole = networkx_graph(STACKS["small_world"], 60)
    reference = small_world.random_graph(60, found.num_edges, seed=5)
    reference = nx.from_scipy_sparse_array(reference)
    random_path_length = nx.average_shortest_path_length(reference)
    assert found.random_path_length == pytest.approx(random_path_length)
    path_length = nx.average_shortest_path_length(whole)
    sigma = nx.transitivity(whole) / nx.density(whole)
    sigma /= path_length / random_path_length
    assert found.sigma == pytest.approx(sigma)
    omega = random_path_length / path_length
    omega -= nx.average_clustering(whole) / found.lattice_clustering
    assert found.omega == pytest.approx(omega)


def test_references_of_networkx():
    graph = nx.connected_watts_strogatz_graph(24, 6, 0.1, seed=1)
    graph = undirected.undirected(nx.to_scipy_sparse_array(graph))
    rewired = analysis.small_world_measures(graph, references="degrees", seed=3)
    options = {"niter": 5, "nrand": 1, "seed": 3}
    graph = nx.from_scipy_sparse_array(graph)
    assert rewired.sigma == pytest.approx(nx.sigma(graph, **options))
    assert rewired.omega == pytest.approx(nx.omega(graph, **options))
    # Against either, it has more clusters than a random graph.
    random = analysis.small_world_measures(
        nx.to_scipy_sparse_array(graph), num_references=4
    )
    assert random.sigma > 1.3 and rewired.sigma > 1.3
    assert random.random_clustering < rewired.clustering / 1.3


@pytest.mark.parametrize("degree", [2, 4, 10, 18, 20, 22, 26, 28])
def test_clustering_of_the_ring(degree):
    """Also where neighbors meet on the other side."""
    ring = nx.watts_strogatz_graph(29, degree, 0.0)
    assert small_world.ring_clustering(degree, 29) == pytest.approx(
        nx.average_clustering(ring)
    )


def test_clustering_between_even_degrees():
    low, middle, high = (
        small_world.ring_clustering(degree, 100) for degree in (8, 9, 10)
    )
    assert middle == pytest.approx((low + high) / 2)
    assert small_world.ring_clustering(0.5, 100) == 0


def test_full_attention_is_its_own_lattice():
    found = analysis.small_world_measures(patterns.Full(), 20)
    assert found.lattice_clustering == 1
    assert found.omega == pytest.approx(0)


@pytest.mark.parametrize("num_edges", [0, 1, 17, 45])
def test_random_graph_has_its_edges(num_edges):
    graph = small_world.random_graph(10, num_edges, seed=1)
    assert graph.nnz == 2 * num_edges
    assert not graph.diagonal().any()
    assert (graph != graph.T).nnz == 0


def test_random_graph_takes_all_pairs_alike():
    count = sum(
        small_world.random_graph(6, 5, seed=seed).toarray()
        for seed in range(600)
    )
    pairs = count[np.triu_indices(6, 1)]
    # Each of 15 pairs in a third of the graphs: a standard deviation of 11.5.
    assert (np.abs(pairs - 200) < 50).all()


def test_random_graph_finds_the_pair_of_large_numbers():
    graph = small_world.random_graph(150_000, 50_000, seed=0)
    assert graph.nnz == 100_000
    row, column = scipy.sparse.triu(graph).tocoo().coords
    # Of uniform pairs, the larger is at two thirds in the mean.
    assert column.mean() / 150_000 == pytest.approx(2 / 3, abs=0.005)
    assert row.mean() / 150_000 == pytest.approx(1 / 3, abs=0.005)


def parts():
    """A triangle, an edge and a lonely node, some entries explicit zeros."""
    row = [0, 1, 0, 3, 4, 5, 6]
    column = [1, 2, 2, 4, 3, 5, 0]
    weight = [1, 1, 1, 1, 1, 1, 0]
    return scipy.sparse.csr_array((weight, (row, column)), (7, 7))


def test_graph_of_several_parts():
    found = analysis.small_world_measures(parts())
    assert found.num_edges == 4
    # 6 + 2 ordered pairs of 42 have a path, all of length 1.
    assert found.connected == pytest.approx(8 / 42)
    assert found.path_length == 1
    assert found.diameter == 1
    assert found.clustering == pytest.approx(3 / 7)
    assert found.transitivity == 1


def test_a_sample_is_within_its_error(monkeypatch):
    source = (patterns.Stochastic(5) | patterns.SlidingWindow(5)).bind(seed=2)
    exact = analysis.small_world_measures(source, 1500)
    sampled = analysis.small_world_measures(source, 1500, num_sources=200)
    assert 0 < sampled.path_length_error < 0.02
    error = sampled.path_length - exact.path_length
    assert abs(error) < 4 * sampled.path_length_error
    assert exact.diameter - 1 <= sampled.diameter <= exact.diameter
    monkeypatch.setattr(undirected, "_STEPS", 20_000)
    sampled = analysis.small_world_measures(source, 1500, num_sources=10)
    assert 0 < sampled.clustering_error < 0.05
    error = sampled.clustering - exact.clustering
    assert abs(error) < 4 * sampled.clustering_error


def test_clustering_in_parts(monkeypatch):
    graph = undirected.undirected(
        analysis.attention_graph(
            (patterns.Stochastic(5) | patterns.SlidingWindow(5)).bind(seed=2),
            300,
        )
    )
    whole = undirected.clustering(graph)
    monkeypatch.setattr(undirected, "_STEPS_AT_A_TIME", 700)
    assert undirected.clustering(graph) == whole


def test_diameter_of_a_sample_is_swept_from_the_ends():
    """From one node in the middle, half of the line would be seen."""
    line = patterns.SlidingWindow(3)
    found = analysis.small_world_measures(line, 400, num_sources=1)
    assert found.diameter == 399


def test_progress():
    steps = []
    analysis.small_world_measures(
        STACKS["small_world"],
        40,
        num_references=2,
        progress=lambda *step: steps.append(step),
    )
    assert steps == [(step, 120) for step in range(1, 121)]


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: analysis.small_world_measures(parts(), length=7),
            "Received: length=7",
        ),
        (
            lambda: analysis.small_world_measures(
                scipy.sparse.csr_array((4, 4))
            ),
            "have edges.*4 nodes",
        ),
        (
            lambda: analysis.small_world_measures(
                scipy.sparse.csr_array((4, 5))
            ),
            "square.*Received: shape \\(4, 5\\)",
        ),
        (
            lambda: analysis.small_world_measures(
                parts(), references="lattice"
            ),
            "`references`.*'lattice'",
        ),
        (
            lambda: analysis.small_world_measures(
                parts(), references="degrees"
            ),
            "connected graph.*7 nodes in 4 parts",
        ),
        (
            lambda: analysis.small_world_measures(parts(), num_sources=0),
            "`num_sources`.*Received",
        ),
        (
            lambda: analysis.small_world_measures(
                patterns.SlidingWindow(3), None
            ),
            "`length`.*Received",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
