"""Receptive fields against networkx, products of matrices and theory."""

import dataclasses
import sys

import networkx as nx
import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa import patterns

LENGTH = 45


def stacks(is_causal):
    return {
        "sliding_window": [patterns.SlidingWindow(4).bind(is_causal=is_causal)]
        * 3,
        "stochastic": [
            patterns.Stochastic(5).bind(seed=seed, is_causal=is_causal)
            for seed in (1, 2)
        ],
        "mixture": [
            (
                patterns.Stochastic(3, permutation_per="head")
                | patterns.SlidingWindow(2)
            ).bind(seed=3, num_key_value_heads=2),
            patterns.Stochastic(4, neighborhood="block").bind(seed=4),
            patterns.SlidingWindow(3),
        ],
        "full": [patterns.SlidingWindow(3), patterns.Full()],
    }


NAMES = tuple(stacks(False))
parametrize_causal = pytest.mark.parametrize("is_causal", [False, True])
parametrize_stack = pytest.mark.parametrize("name", NAMES)


def reached_by_products(stack, length):
    """Boolean `[n, n]` after each layer: row i was reached by column j."""
    reached = np.eye(length, dtype=int)
    yield reached > 0
    for graph in analysis.attention_graphs(stack, length):
        reached = (graph.toarray().astype(int) @ reached > 0).astype(int)
        yield reached > 0


def fraction_of_allowed(reached, is_causal):
    length = len(reached)
    allowed = np.arange(1, length + 1) if is_causal else length
    return reached.sum(axis=1) / allowed


@parametrize_causal
@parametrize_stack
def test_exact(name, is_causal):
    stack = stacks(is_causal)[name]
    found = analysis.receptive_field(stack, LENGTH, is_causal=is_causal)
    stack = analysis.as_patterns(stack, is_causal)
    expected = [
        fraction_of_allowed(reached, is_causal)
        for reached in reached_by_products(stack, LENGTH)
    ]
    assert found.is_exact and found.num_sources == LENGTH
    np.testing.assert_allclose(found.token_coverage, expected, rtol=1e-6)
    np.testing.assert_allclose(found.coverage, np.mean(expected, axis=1))
    assert not found.standard_error.any()


@parametrize_causal
def test_networkx_finds_the_same_ancestors(is_causal):
    """In the graph whose nodes are the tokens of every layer."""
    stack = analysis.as_patterns(stacks(False)["mixture"], is_causal)
    layers = nx.DiGraph()
    layers.add_nodes_from((0, token) for token in range(LENGTH))
    for depth, graph in enumerate(analysis.attention_graphs(stack, LENGTH)):
        for token, seen in zip(*graph.nonzero()):
            layers.add_edge((depth, int(seen)), (depth + 1, int(token)))
    expected = np.zeros(LENGTH)
    for token in range(LENGTH):
        ancestors = nx.ancestors(layers, (len(stack), token))
        inputs = sum(depth == 0 for depth, _ in ancestors)
        expected[token] = inputs / (token + 1 if is_causal else LENGTH)
    found = analysis.receptive_field(stack, LENGTH)
    np.testing.assert_allclose(found.token_coverage[-1], expected, rtol=1e-6)


def test_parts_of_the_work_do_not_matter(monkeypatch):
    stack = analysis.as_patterns(stacks(False)["mixture"], is_causal=True)
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
def test_sample_is_near(name, is_causal):
    stack = analysis.as_patterns(stacks(is_causal)[name], is_causal)
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
def test_by_distance(is_causal, num_sources):
    stack = analysis.as_patterns(stacks(is_causal)["mixture"], is_causal)
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
            <= (i - j if is_causal else abs(i - j))
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
    stack = [patterns.Stochastic(32).bind(seed=seed) for seed in range(5)]
    field = analysis.receptive_field(
        stack, 1024, is_causal=True, by_distance=True
    )
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
    stack = [
        patterns.SlidingWindow(2).bind(is_causal=True),
        patterns.Full().bind(is_causal=True),
    ]
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
    with pytest.raises(ValueError, match="`fraction`.*Received: fraction=99"):
        field.coverage_depth(99)


@parametrize_causal
def test_sliding_windows_reach_as_far_as_theory_says(is_causal):
    stack = [
        patterns.SlidingWindow(6).bind(is_causal=is_causal),
        patterns.SlidingWindow(1).bind(is_causal=is_causal),
        patterns.SlidingWindow(90).bind(is_causal=is_causal),
        patterns.SlidingWindow(3).bind(is_causal=is_causal),
        (patterns.SlidingWindow(5) | patterns.SlidingWindow(7)).bind(
            is_causal=is_causal
        ),
        (patterns.SlidingWindow(4) + patterns.SlidingWindow(7)).bind(
            is_causal=is_causal
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
        lambda seed: patterns.Stochastic(20).bind(seed=seed),
        lambda seed: patterns.Stochastic(20, neighborhood="block").bind(
            seed=seed
        ),
        lambda seed: patterns.Stochastic(6, permutation_per="head").bind(
            seed=seed, num_key_value_heads=4
        ),
        lambda seed: (patterns.Stochastic(12) | patterns.SlidingWindow(9)).bind(
            seed=seed
        ),
    ],
)
def test_theory_of_random_orders(make, is_causal):
    stack = analysis.as_patterns([make(seed) for seed in range(4)], is_causal)
    expected = analysis.expected_coverage(stack, 1500)
    found = analysis.receptive_field(stack, 1500).coverage
    np.testing.assert_allclose(found, expected, atol=0.025)


@parametrize_causal
def test_theory_of_full_attention(is_causal):
    stack = [
        (patterns.Stochastic(3) | patterns.SlidingWindow(3)).bind(seed=1),
        patterns.Full(),
        patterns.Stochastic(2).bind(seed=2),
    ]
    stack = analysis.as_patterns(stack, is_causal)
    coverage = analysis.expected_coverage(stack, 50)
    np.testing.assert_allclose(coverage[2:], 1)
    assert coverage[1] < 0.3


def test_the_claim_without_causality_and_with_it():
    """SA alone covers in log_w n layers only where paths may walk back."""
    stack = [patterns.Stochastic(64).bind(seed=seed) for seed in range(8)]
    both_ways = analysis.receptive_field(stack, 4096)
    assert both_ways.coverage_depth() <= 3
    causal = analysis.receptive_field(stack, 4096, is_causal=True)
    assert causal.coverage_depth(0.99) is None
    small_world = [
        (patterns.Stochastic(64) | patterns.SlidingWindow(64)).bind(seed=seed)
        for seed in range(8)
    ]
    small_world = analysis.receptive_field(small_world, 4096, is_causal=True)
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
                    patterns.SlidingWindow(2).bind(is_causal=True),
                ]
            },
            "`is_causal`",
        ),
    ],
)
def test_bad_arguments(options, message):
    arguments = {"source": patterns.SlidingWindow(2), "length": 20}
    with pytest.raises(ValueError, match=message):
        analysis.receptive_field(**{**arguments, **options})


@dataclasses.dataclass(frozen=True)
class NextButOne(patterns.Pattern):
    """Of somebody else: `neighbors` and nothing more."""

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        before = ops.maximum(positions - 2, 0)
        after = positions + 2
        after = ops.where(after < length, after, -1)
        return ops.stack([before, positions, after], axis=1)


@parametrize_causal
def test_a_pattern_of_ones_own(is_causal):
    field = analysis.receptive_field([NextButOne()] * 3, LENGTH, is_causal)
    reached = [{token} for token in range(LENGTH)]
    for found in field.token_coverage:
        for token, by in enumerate(reached):
            allowed = token + 1 if is_causal else LENGTH
            assert found[token] == pytest.approx(len(by) / allowed)
        last = range(LENGTH)
        reached = [
            set().union(
                *(
                    reached[key]
                    for key in (max(token - 2, 0), token, token + 2)
                    if key <= (token if is_causal else last[-1])
                )
            )
            for token in last
        ]
    measures = analysis.small_world_measures(NextButOne(), LENGTH, is_causal)
    assert measures.degree == pytest.approx(2 * 44 / 45)
    gap = analysis.spectral_gap([NextButOne()] * 2, LENGTH, is_causal)
    assert (gap.moduli <= 1).all()
    variation = analysis.total_variation(NextButOne(), LENGTH, is_causal)
    assert (variation.mean > 0.5).all()
    with pytest.raises(ValueError, match="A theory is expected for"):
        analysis.expected_coverage(NextButOne(), LENGTH)


@parametrize_causal
@pytest.mark.parametrize(
    "pattern",
    [
        patterns.SlidingWindow(3) | patterns.GlobalQueries(last=4),
        patterns.GlobalQueries(first=2)
        | patterns.Stochastic(4)
        | patterns.GlobalQueries(last=1)
        | patterns.Stochastic(3),
        patterns.SlidingWindow(2) + patterns.Full(),
        patterns.SlidingWindow(3)
        + (patterns.Stochastic(3) | patterns.Stochastic(2)),
        patterns.GlobalQueries(last=4),
        patterns.SlidingWindow(4, dilation=3) | patterns.GlobalKeys(first=2),
    ],
    ids=repr,
)
def test_rows_that_attend_to_all_are_those_of_the_mask(pattern, is_causal):
    bound = pattern.bind(is_causal=is_causal, seed=4)
    graph = analysis.attention_graph(bound, LENGTH).toarray()
    mask = ops.convert_to_numpy(bound.mask(LENGTH))
    np.testing.assert_array_equal(graph, mask)
    field = analysis.receptive_field([bound], LENGTH)
    np.testing.assert_allclose(
        field.token_coverage[1], fraction_of_allowed(mask, is_causal), rtol=1e-6
    )


@pytest.mark.parametrize(
    "pattern",
    [
        patterns.BlockRouted(2, 1).bind(routes=np.zeros((4, 1, 1), int)),
        patterns.GlobalKeys(first=2),
        patterns.SlidingWindow(2) | patterns.GlobalQueries(last=1),
        patterns.SlidingWindow(2, dilation=2),
    ],
)
def test_no_theory_where_tokens_differ(pattern):
    with pytest.raises(ValueError, match="A theory is expected for"):
        analysis.expected_coverage(pattern, 4)


def test_no_theory_of_one_order_in_all_layers():
    stack = [patterns.Stochastic(64).bind(seed=2)] * 3
    with pytest.raises(ValueError, match="independent.*\\[2, 2, 2\\]"):
        analysis.expected_coverage(stack, 1000)
    # It reaches no further than a sliding window.
    found = analysis.receptive_field(stack, 1000).coverage
    window = analysis.receptive_field([patterns.SlidingWindow(64)] * 3, 1000)
    np.testing.assert_allclose(found, window.coverage)
