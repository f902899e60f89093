"""Receptive fields against networkx, products of matrices and theory."""

import sys

import networkx as nx
import numpy as np
import pytest

from keras_sa import analysis
from keras_sa.ops import patterns

LENGTH = 45


def stacks(causal):
    return {
        "sliding_window": [patterns.SlidingWindow(4, causal=causal)] * 3,
        "stochastic": [
            patterns.Stochastic(5, seed=seed, causal=causal) for seed in (1, 2)
        ],
        "mixture": [
            patterns.SmallWorld(
                3, seed=3, local_window_size=2, num_permutations=2
            ),
            patterns.Stochastic(4, seed=4, neighborhood="block"),
            patterns.SlidingWindow(3),
        ],
        "full": [patterns.SlidingWindow(3), patterns.Full()],
    }


NAMES = tuple(stacks(False))
parametrize_causal = pytest.mark.parametrize("causal", [False, True])
parametrize_stack = pytest.mark.parametrize("name", NAMES)


def reached_by_products(stack, length):
    """Boolean `[n, n]` after each layer: row i was reached by column j."""
    reached = np.eye(length, dtype=int)
    yield reached > 0
    for graph in analysis.attention_graphs(stack, length):
        reached = (graph.toarray().astype(int) @ reached > 0).astype(int)
        yield reached > 0


def share_of_allowed(reached, causal):
    length = len(reached)
    allowed = np.arange(1, length + 1) if causal else length
    return reached.sum(axis=1) / allowed


@parametrize_causal
@parametrize_stack
def test_exact(name, causal):
    stack = stacks(causal)[name]
    found = analysis.receptive_field(stack, LENGTH, causal=causal)
    stack = analysis.as_patterns(stack, causal)
    expected = [
        share_of_allowed(reached, causal)
        for reached in reached_by_products(stack, LENGTH)
    ]
    assert found.is_exact and found.num_sources == LENGTH
    np.testing.assert_allclose(found.token_coverage, expected, rtol=1e-6)
    np.testing.assert_allclose(found.coverage, np.mean(expected, axis=1))
    assert not found.standard_error.any()


@parametrize_causal
def test_networkx_finds_the_same_ancestors(causal):
    """In the graph whose nodes are the tokens of every layer."""
    stack = analysis.as_patterns(stacks(False)["mixture"], causal)
    layers = nx.DiGraph()
    layers.add_nodes_from((0, token) for token in range(LENGTH))
    for depth, graph in enumerate(analysis.attention_graphs(stack, LENGTH)):
        for token, seen in zip(*graph.nonzero()):
            layers.add_edge((depth, int(seen)), (depth + 1, int(token)))
    expected = np.zeros(LENGTH)
    for token in range(LENGTH):
        ancestors = nx.ancestors(layers, (len(stack), token))
        inputs = sum(depth == 0 for depth, _ in ancestors)
        expected[token] = inputs / (token + 1 if causal else LENGTH)
    found = analysis.receptive_field(stack, LENGTH)
    np.testing.assert_allclose(found.token_coverage[-1], expected, rtol=1e-6)


def test_parts_of_the_work_do_not_matter(monkeypatch):
    stack = analysis.as_patterns(stacks(False)["mixture"], causal=True)
    whole = analysis.receptive_field(stack, 150)
    module = sys.modules[analysis.receptive_field.__module__]
    monkeypatch.setattr(module, "_WORDS", 200)
    monkeypatch.setattr(module, "_WORDS_AT_A_TIME", 7)
    steps = []
    parts = analysis.receptive_field(
        stack, 150, progress=lambda *step: steps.append(step)
    )
    np.testing.assert_array_equal(whole.token_coverage, parts.token_coverage)
    assert len(steps) > len(stack) + 1
    assert steps[-1][0] == steps[-1][1] and steps == sorted(steps)


@parametrize_causal
@parametrize_stack
def test_sample_is_near(name, causal):
    stack = analysis.as_patterns(stacks(causal)[name], causal)
    exact = analysis.receptive_field(stack, 400)
    sampled = [
        analysis.receptive_field(stack, 400, num_sources=130, seed=seed)
        for seed in range(12)
    ]
    found = np.array([x.coverage for x in sampled])
    error = np.array([x.standard_error for x in sampled])
    assert not sampled[0].is_exact
    # The mean of all samples, and what their spread is said to be.
    spread = found.std(axis=0, ddof=1)
    allowed = 4 * spread / np.sqrt(len(sampled)) + 0.02 * exact.coverage
    assert (np.abs(found.mean(axis=0) - exact.coverage) <= allowed).all()
    typical = np.sqrt((error**2).mean(axis=0))
    is_spread = spread > 1e-4
    assert (typical[is_spread] < 2 * spread[is_spread]).all()
    assert (typical[is_spread] > spread[is_spread] / 2).all()


@parametrize_causal
@pytest.mark.parametrize("num_sources", [None, 40])
def test_by_distance(causal, num_sources):
    stack = analysis.as_patterns(stacks(causal)["mixture"], causal)
    found = analysis.receptive_field(
        stack, LENGTH, num_sources=num_sources, by_distance=True, seed=3
    )
    sources = np.random.default_rng(3).choice(
        LENGTH, num_sources or LENGTH, False
    )
    *_, reached = reached_by_products(stack, LENGTH)
    expected = []
    for exponent in range(6):
        pairs = [
            reached[i, j]
            for i in range(LENGTH)
            for j in sources
            if 2**exponent
            <= (i - j if causal else abs(i - j))
            < 2 ** (exponent + 1)
        ]
        expected.append(np.mean(pairs))
    np.testing.assert_allclose(found.distance_coverage[-1], expected)
    assert not found.distance_coverage[0].any()
    plain = analysis.receptive_field(
        stack, LENGTH, num_sources=num_sources, seed=3
    )
    assert plain.distance_coverage is None
    np.testing.assert_array_equal(plain.coverage, found.coverage)


def test_causal_orders_miss_the_tokens_nearby():
    """Hardly any path leads through the few tokens between."""
    stack = [patterns.Stochastic(32, seed=seed) for seed in range(5)]
    field = analysis.receptive_field(stack, 1024, causal=True, by_distance=True)
    neighbor, *_, farthest = field.distance_coverage[-1]
    # Only directly, by one of five orders.
    assert neighbor == pytest.approx(1 - (1 - 31 / 1023) ** 5, abs=0.05)
    assert farthest == pytest.approx(1, abs=1e-3)


def test_a_sample_of_everybody_is_exact():
    stack = stacks(True)["stochastic"]
    whole = analysis.receptive_field(stack, 70)
    sample = analysis.receptive_field(stack, 70, num_sources=70, seed=9)
    np.testing.assert_array_equal(whole.coverage, sample.coverage)


def test_tokens_before_the_first_source_have_no_share():
    stack = stacks(True)["sliding_window"]
    found = analysis.receptive_field(stack, 100, num_sources=5, seed=0)
    assert np.isnan(found.token_coverage[:, 0]).all()
    assert np.isfinite(found.token_coverage[:, -1]).all()


def test_long_texts_are_sampled():
    stack = [patterns.SlidingWindow(2, causal=True), patterns.Full(causal=True)]
    found = analysis.receptive_field(stack, 150_000)
    assert found.num_sources == 1024
    assert found.coverage[1] < 0.01
    assert found.coverage[-1] == 1.0
    assert found.coverage_depth() == 2


def test_coverage_depth():
    coverage = np.array([0.01, 0.5, 0.991, 1.0, 1.0])
    zeros = np.zeros(5)
    field = analysis.ReceptiveField(9, True, coverage, zeros, zeros, 9)
    assert field.coverage_depth(0.99) == 2
    assert field.coverage_depth() == 3
    assert field.coverage_depth(0.005) == 0
    with pytest.raises(ValueError, match="`share`.*Received: share=99"):
        field.coverage_depth(99)


@parametrize_causal
def test_sliding_windows_reach_as_far_as_theory_says(causal):
    stack = [
        patterns.SlidingWindow(6, causal=causal),
        patterns.SlidingWindow(1, causal=causal),
        patterns.SlidingWindow(90, causal=causal),
        patterns.SlidingWindow(3, causal=causal),
        patterns.Stochastic(8, order="identity", causal=causal),
        patterns.SmallWorld(
            6, order="identity", local_window_size=7, causal=causal
        ),
    ]
    np.testing.assert_allclose(
        analysis.expected_coverage(stack, 100),
        analysis.receptive_field(stack, 100).coverage,
    )


@parametrize_causal
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: patterns.Stochastic(20, seed=seed),
        lambda seed: patterns.Stochastic(20, seed=seed, neighborhood="block"),
        lambda seed: patterns.Stochastic(6, seed=seed, num_permutations=4),
        lambda seed: patterns.SmallWorld(12, seed=seed, local_window_size=9),
    ],
)
def test_theory_of_random_orders(make, causal):
    stack = analysis.as_patterns([make(seed) for seed in range(4)], causal)
    expected = analysis.expected_coverage(stack, 1500)
    found = analysis.receptive_field(stack, 1500).coverage
    np.testing.assert_allclose(found, expected, atol=0.025)


@parametrize_causal
def test_theory_of_full_attention(causal):
    stack = [
        patterns.SmallWorld(3, seed=1),
        patterns.Full(),
        patterns.Stochastic(2, seed=2),
    ]
    stack = analysis.as_patterns(stack, causal)
    coverage = analysis.expected_coverage(stack, 50)
    np.testing.assert_allclose(coverage[2:], 1)
    assert coverage[1] < 0.3


def test_the_claim_without_causality_and_with_it():
    """SA alone covers in log_w n layers only where paths may walk back."""
    stack = [patterns.Stochastic(64, seed=seed) for seed in range(8)]
    both_ways = analysis.receptive_field(stack, 4096)
    assert both_ways.coverage_depth() <= 3
    causal = analysis.receptive_field(stack, 4096, causal=True)
    assert causal.coverage_depth(0.99) is None
    small_world = [patterns.SmallWorld(64, seed=seed) for seed in range(8)]
    small_world = analysis.receptive_field(small_world, 4096, causal=True)
    assert small_world.coverage_depth() == 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"length": 0}, "`length`"),
        ({"num_sources": 0}, "`num_sources`"),
        ({"num_sources": 21}, "at most length=20.*num_sources=21"),
        ({"source": []}, "`source`"),
        (
            {
                "source": [
                    patterns.SlidingWindow(2),
                    patterns.SlidingWindow(2, causal=True),
                ]
            },
            "`causal`",
        ),
    ],
)
def test_bad_arguments(options, message):
    arguments = {"source": patterns.SlidingWindow(2), "length": 20}
    with pytest.raises(ValueError, match=message):
        analysis.receptive_field(**{**arguments, **options})


@pytest.mark.parametrize(
    "pattern",
    [
        patterns.BlockRouted(2, np.zeros((4, 1, 1), int)),
        patterns.Stochastic(2, neighborhood="block", order="identity"),
    ],
)
def test_no_theory_where_tokens_differ(pattern):
    with pytest.raises(ValueError, match="A theory is expected for"):
        analysis.expected_coverage(pattern, 4)


def test_no_theory_of_one_order_in_all_layers():
    stack = [patterns.Stochastic(64, seed=2)] * 3
    with pytest.raises(ValueError, match="independent.*\\[2, 2, 2\\]"):
        analysis.expected_coverage(stack, 1000)
    # It reaches no further than a sliding window.
    found = analysis.receptive_field(stack, 1000).coverage
    window = analysis.receptive_field([patterns.SlidingWindow(64)] * 3, 1000)
    np.testing.assert_allclose(found, window.coverage)
