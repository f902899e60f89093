"""Mixing against dense linear algebra and against what theory says."""

import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa import patterns
from keras_sa.analysis import mixing

STACKS = {
    "sliding_window": [patterns.SlidingWindow(7), patterns.SlidingWindow(4)],
    "stochastic": [patterns.Stochastic(6).bind(seed=s) for s in (1, 2, 3)],
    "block": [
        patterns.Stochastic(6, neighborhood="block").bind(seed=s)
        for s in (1, 2)
    ],
    "small_world": [
        (patterns.Stochastic(5) | patterns.SlidingWindow(3)).bind(seed=4),
        patterns.Stochastic(4, permutation_per="head").bind(
            seed=5, num_key_value_heads=2
        ),
    ],
    "full": [patterns.Full(), patterns.Stochastic(6).bind(seed=1)],
    "routed": [
        patterns.BlockRouted(5, 1).bind(
            routes=np.arange(40)[:, None, None] // 5
        ),
        (patterns.Stochastic(5) | patterns.SlidingWindow(5)).bind(seed=4),
    ],
}
# Of the larger examples; blocks fill it.
LENGTH, WINDOW = 1008, 21
parametrize_stack = pytest.mark.parametrize("name", STACKS)
parametrize_causal = pytest.mark.parametrize("is_causal", [False, True])


def stochastic(seed, neighborhood="window"):
    return patterns.Stochastic(WINDOW, neighborhood=neighborhood).bind(
        seed=seed
    )


def dense_layers(stack, length, is_causal):
    masks = [
        ops.convert_to_numpy(pattern.mask(length)).astype("float64")
        for pattern in analysis.as_patterns(stack, is_causal)
    ]
    return [mask / mask.sum(axis=1, keepdims=True) for mask in masks]


def dense_product(matrices):
    product = np.eye(len(matrices[0]))
    for matrix in matrices:
        product = matrix @ product
    return product


def second_modulus(matrix):
    return np.sort(np.abs(np.linalg.eigvals(matrix)))[-2]


def contraction(matrix):
    mean = np.full(matrix.shape, 1 / len(matrix))
    return np.linalg.norm(matrix - mean @ matrix, 2)


@parametrize_causal
@parametrize_stack
def test_matrices_are_uniform_attention(name, is_causal):
    expected = dense_layers(STACKS[name], 40, is_causal)
    found = analysis.transition_matrices(STACKS[name], 40, is_causal)
    for matrix, layer in zip(found, expected, strict=True):
        matrix.check_format()
        assert matrix.dtype == "float64"
        np.testing.assert_allclose(matrix.toarray(), layer, atol=1e-15)


def test_matrix_of_a_stack():
    with pytest.raises(ValueError, match="one layer.*Received a stack of 3"):
        analysis.transition_matrix(STACKS["stochastic"], 40)


@pytest.mark.parametrize("most_dense", [0, 128])
@parametrize_causal
@parametrize_stack
def test_spectral_gap(name, is_causal, most_dense, monkeypatch):
    monkeypatch.setattr(mixing, "_MOST_DENSE", most_dense)
    layers = dense_layers(STACKS[name], 40, is_causal)
    found = analysis.spectral_gap(STACKS[name], 40, is_causal)
    product = dense_product(layers)
    close = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(
        found.moduli, [second_modulus(x) for x in layers], **close
    )
    np.testing.assert_allclose(
        found.product_modulus, second_modulus(product), **close
    )
    np.testing.assert_allclose(
        found.contractions, [contraction(x) for x in layers], **close
    )
    np.testing.assert_allclose(
        found.product_contraction, contraction(product), **close
    )
    np.testing.assert_array_equal(found.gaps, 1 - found.moduli)
    assert found.product_gap == 1 - found.product_modulus


def test_an_order_changes_no_eigenvalue():
    window = analysis.spectral_gap(patterns.SlidingWindow(WINDOW), LENGTH)
    layer = analysis.spectral_gap(stochastic(seed=5), LENGTH)
    np.testing.assert_allclose(layer.moduli, window.moduli, rtol=1e-12)
    assert 0 < window.gaps[0] < (np.pi * WINDOW / LENGTH) ** 2


def test_gap_of_independent_orders():
    """Random matrices: each layer leaves a part of 1 / sqrt(w)."""
    same = analysis.spectral_gap([stochastic(seed=0)] * 4, LENGTH)
    other = analysis.spectral_gap([stochastic(s) for s in range(4)], LENGTH)
    expected = WINDOW**-2
    assert same.product_modulus > 0.97
    assert expected / 1.5 < other.product_modulus < expected * 1.5


def test_small_products_are_not_lost_in_rounding():
    """21^-15, far below the rounding of a matrix with entries near 1 / n."""
    stack = [stochastic(seed) for seed in range(30)]
    modulus = analysis.spectral_gap(stack, LENGTH).product_modulus
    assert WINDOW**-15 / 5 < modulus < WINDOW**-15 * 5


def test_gap_of_blocks_is_nothing():
    found = analysis.spectral_gap(stochastic(0, "block"), LENGTH)
    np.testing.assert_allclose(found.moduli, 1, rtol=1e-9)
    assert found.gaps[0] >= 0


@pytest.mark.parametrize("length", [40, 400])
def test_gap_of_full_attention_is_everything(length):
    found = analysis.spectral_gap(patterns.Full(), length)
    np.testing.assert_allclose(found.moduli, 0, atol=1e-12)
    np.testing.assert_allclose(found.contractions, 0, atol=1e-12)


def test_gap_of_one_token():
    found = analysis.spectral_gap(patterns.Full(), 1)
    assert found.moduli == [0] and found.product_contraction == 0


def test_no_convergence_is_nan(monkeypatch):
    monkeypatch.setattr(mixing, "_MOST_WORK", 0)
    stack = [patterns.SlidingWindow(WINDOW)] * 2
    found = analysis.spectral_gap(stack, LENGTH)
    assert np.isnan(found.moduli).all() and np.isnan(found.product_contraction)


def expected_distances(layers, is_causal):
    """`[L, n]`"""
    length = len(layers[0])
    uniform = np.tri(length) if is_causal else np.ones((length, length))
    uniform /= uniform.sum(axis=1, keepdims=True)
    products = [dense_product(layers[: d + 1]) for d in range(len(layers))]
    return [np.abs(x - uniform).sum(axis=1) / 2 for x in products]


@pytest.mark.parametrize("num_tokens", [None, 40, 12])
@parametrize_causal
@parametrize_stack
def test_total_variation(name, is_causal, num_tokens):
    expected = expected_distances(
        dense_layers(STACKS[name], 40, is_causal), is_causal
    )
    found = analysis.total_variation(
        STACKS[name], 40, is_causal, num_tokens=num_tokens
    )
    expected = np.array(expected)[:, found.tokens]
    assert len(set(found.tokens)) == (num_tokens or 40)
    np.testing.assert_allclose(found.distances, expected, atol=1e-13)
    np.testing.assert_allclose(found.mean, expected.mean(axis=1))
    np.testing.assert_allclose(found.worst, expected.max(axis=1))


def test_standard_error_is_the_spread_of_samples():
    stack = STACKS["stochastic"]
    everything = analysis.total_variation(stack, 40, is_causal=True)
    np.testing.assert_array_equal(everything.standard_error, 0)
    samples = [
        analysis.total_variation(stack, 40, True, num_tokens=10, seed=seed)
        for seed in range(40)
    ]
    off = np.array([x.mean - everything.mean for x in samples])
    spread = np.sqrt((off**2).mean(axis=0))
    claimed = np.mean([x.standard_error for x in samples], axis=0)
    np.testing.assert_allclose(claimed, spread, rtol=0.35)  # 11 % by chance
    alone = analysis.total_variation(stack, 40, num_tokens=1)
    assert np.isnan(alone.standard_error).all()


@parametrize_causal
def test_the_same_order_mixes_as_a_sliding_window_does(is_causal):
    """It is one, in the order of its slots; independent orders are not."""
    window, same, other = [
        analysis.total_variation(stack, LENGTH, is_causal).mean
        for stack in (
            [patterns.SlidingWindow(WINDOW)] * 4,
            [stochastic(seed=0)] * 4,
            [stochastic(seed) for seed in range(4)],
        )
    ]
    if not is_causal:
        np.testing.assert_allclose(same, window, rtol=1e-12)
    assert other[0] == pytest.approx(same[0], rel=0.01)
    assert (other[2:] < 0.8 * same[2:]).all()
    assert is_causal or other[-1] < 0.1 * same[-1]


def test_causal_layers_gather_on_the_first_tokens():
    """Uniform attention, which is near after a few layers, is no limit."""
    stack = [stochastic(seed) for seed in range(12)]
    mean = analysis.total_variation(stack, LENGTH, is_causal=True).mean
    nearest = mean.argmin()
    assert 0 < nearest < 6
    assert mean[-1] > mean[nearest] + 0.1


def test_total_variation_of_one_layer():
    found = analysis.total_variation(stochastic(3, "block"), LENGTH)
    np.testing.assert_allclose(found.distances, 1 - WINDOW / LENGTH)
    found = analysis.total_variation(patterns.Full().bind(is_causal=True), 40)
    np.testing.assert_allclose(found.distances, 0, atol=1e-12)


def test_total_variation_of_many_tokens():
    """A row of the product for every token would take 32 GB."""
    stack = [patterns.Stochastic(4).bind(seed=s) for s in range(3)]
    found = analysis.total_variation(stack, 65_000, num_tokens=4)
    assert 1 - 4**3 / 65_000 - 1e-9 < found.mean[-1] < 1 - 4**2 / 65_000


@pytest.mark.parametrize("num_tokens", [0, 2.0, 11])
def test_bad_num_tokens(num_tokens):
    with pytest.raises(ValueError, match="`num_tokens` is expected.*Received"):
        analysis.total_variation(
            patterns.SlidingWindow(3), 10, num_tokens=num_tokens
        )
