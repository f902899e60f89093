"""The estimator claims: enumerated, and measured."""

import itertools

import numpy as np
import pytest
from example_runs import run_study
from example_runs import table_by_name
from keras import ops

from examples.studies.estimation import run
from examples.studies.estimation.measuring import estimator_error
from keras_sa import patterns
from keras_sa.patterns.stochastic import DrawnPermutation

LENGTH = 5
parametrize_causal = pytest.mark.parametrize("is_causal", [False, True])
parametrize_neighborhood = pytest.mark.parametrize(
    "neighborhood", ["window", "block"]
)


def enumerated(window_size, neighborhood, is_causal):
    """Exact squared bias and variance, over all orders of five tokens.

    For independent values of variance 1 the square of an error is the sum of
    the squares of its weights.
    """
    pattern = patterns.Stochastic(window_size, neighborhood)
    orders = np.array(list(itertools.permutations(range(LENGTH))), "int32")
    slots = np.argsort(orders, axis=-1).astype("int32")
    drawn = DrawnPermutation(orders, slots, per_head=False)
    masks = pattern.mask(LENGTH, seed=drawn, is_causal=is_causal)
    weights = ops.convert_to_numpy(masks).astype("float64")
    weights /= weights.sum(axis=-1, keepdims=True)
    full = np.tri(LENGTH) if is_causal else np.ones((LENGTH, LENGTH))
    full /= full.sum(axis=-1, keepdims=True)
    bias = weights.mean(axis=0) - full
    return (bias**2).sum() / LENGTH, weights.var(axis=0).sum() / LENGTH


@parametrize_causal
@parametrize_neighborhood
def test_theory_is_exact(neighborhood, is_causal):
    sizes = [2, 3]
    found = estimator_error(
        LENGTH, sizes, neighborhood, is_causal, num_draws=2, num_values=2
    )
    exact = [enumerated(size, neighborhood, is_causal) for size in sizes]
    bias, variance = np.transpose(exact)
    np.testing.assert_allclose(found.expected_squared_bias, bias, atol=1e-15)
    np.testing.assert_allclose(found.expected_variance, variance, atol=1e-15)
    np.testing.assert_array_equal(found.window_sizes, sizes)


@parametrize_causal
@parametrize_neighborhood
def test_theory_is_what_is_measured(neighborhood, is_causal):
    found = estimator_error(
        64, [4, 16], neighborhood, is_causal, num_draws=4, num_values=12
    )
    for name in ("squared_bias", "variance"):
        measured = getattr(found, name)
        error = getattr(found, f"{name}_error")
        off = measured - getattr(found, f"expected_{name}")
        assert (np.abs(off) < 4 * error).all(), name
        # Precise enough to tell from no bias, and from no variance.
        assert (error < 0.4 * measured).all(), name


def test_whole_windows():
    """Blocks that divide the length: the formulas of the docstring."""
    n, w = 64, np.array([4, 16])
    found = estimator_error(n, w.tolist(), "block", num_draws=2, num_values=2)
    bias = (n - w) / (w * (n - 1))
    np.testing.assert_allclose(
        found.expected_squared_bias, bias**2 * (n - 1) / n
    )
    np.testing.assert_allclose(
        found.expected_variance, (w - 1) / w**2 * (n - w) / (n - 1)
    )


@parametrize_causal
def test_seeing_everything_has_no_error(is_causal):
    found = estimator_error(
        LENGTH, [LENGTH], "block", is_causal, num_draws=2, num_values=2
    )
    for name in ("squared_bias", "variance"):
        np.testing.assert_allclose(getattr(found, name), 0, atol=1e-30)
        np.testing.assert_allclose(
            getattr(found, f"expected_{name}"), 0, atol=1e-15
        )


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"window_sizes": []}, "window_sizes"),
        ({"window_sizes": [4, 0]}, "window_sizes"),
        ({"window_sizes": [4, 21]}, "window_sizes"),
        ({"num_draws": 1}, "num_draws"),
        ({"num_values": 1}, "num_values"),
        ({"neighborhood": "ring"}, "neighborhood"),
        ({"length": 0}, "length"),
    ],
)
def test_bad_arguments(arguments, name):
    arguments = {"length": 20, "window_sizes": [3], **arguments}
    with pytest.raises(ValueError, match=f"`{name}` is expected.*Received"):
        estimator_error(**arguments)


SMALL = ["--length", 20, "--draws", 2, "--values", 2, "--window-sizes"]


def test_the_study(tmp_path, monkeypatch):
    options = [*SMALL, 3, 6, "--is-causal", "--output", tmp_path]
    run_study(run, options, monkeypatch)
    rows = table_by_name((tmp_path / "table.md").read_text())
    assert list(rows) == ["3", "6"]
    found = estimator_error(
        20, [3, 6], is_causal=True, num_draws=2, num_values=2
    )
    for column, values in (
        ("squared bias, theory", found.expected_squared_bias),
        ("variance, theory", found.expected_variance),
    ):
        written = [float(row[column]) for row in rows.values()]
        assert written == pytest.approx(values.tolist(), rel=1e-3)
    mean, _, error = rows["6"]["variance"].split()
    assert float(mean) == pytest.approx(found.variance[1], abs=float(error))
    assert float(error) == pytest.approx(found.variance_error[1], rel=0.1)


def test_a_window_that_is_too_large(monkeypatch):
    with pytest.raises(SystemExit, match="`window_sizes` is expected"):
        run_study(run, [*SMALL, 21], monkeypatch)
