"""Dropout on the attention weights: rate, mean and seeds."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import dense_attention
from tests import testing

LENGTH, WINDOW, RATE = 60, 5, 0.3
CASE = testing.Case(
    "dropout", length=LENGTH, head_dim=4, value_dim=5, permutation="shared"
)
FAR = 5  # standard deviations


def attend_densely(query, key, value, permutation, **arguments):
    return dense_attention(query, key, value, **arguments)


PATHS = {
    "dense": attend_densely,
    **{k: v for k, v in testing.PATHS.items() if k != "native_block"},
}
parametrize_path = pytest.mark.parametrize("path", PATHS)


def run(path, query, key, value, seed, rate=RATE):
    order = testing.make_inputs(CASE).permutation
    attend = backend.compile(
        lambda *x: PATHS[path](*x, order, dropout=rate, dropout_seed=seed)
    )
    output = attend(*(ops.convert_to_tensor(x) for x in (query, key, value)))
    return np.asarray(ops.convert_to_numpy(output), "float64")


def weights_of(path, seed, rate=RATE):
    """`[B, n, H, n]` attention weights, read off with one-hot values."""
    inputs = testing.make_inputs(CASE)
    value = np.broadcast_to(
        np.eye(LENGTH, dtype="float32")[None, :, None],
        (CASE.batch, LENGTH, CASE.kv_heads, LENGTH),
    )
    return run(path, inputs.query, inputs.key, value, seed, rate)


@parametrize_path
def test_weights_are_dropped_at_the_rate_or_scaled(path):
    plain, dropped = weights_of(path, 0, rate=0.0), weights_of(path, 3)
    visible = plain > 0
    kept = dropped > 0
    assert not np.any(kept & ~visible)
    expected = plain[kept] / (1 - RATE)
    np.testing.assert_allclose(dropped[kept], expected, rtol=1e-5)
    share, count = 1 - kept[visible].mean(), visible.sum()
    assert abs(share - RATE) <= FAR * (RATE * (1 - RATE) / count) ** 0.5


@parametrize_path
def test_the_mean_is_preserved(path):
    plain, dropped = weights_of(path, 0, rate=0.0), weights_of(path, 4)
    variance = np.sum(plain**2) * RATE / (1 - RATE)
    assert abs(dropped.sum() - plain.sum()) <= FAR * variance**0.5


@parametrize_path
def test_an_integer_seed_decides(path):
    first, again, other = (weights_of(path, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@parametrize_path
def test_examples_and_heads_draw_for_themselves(path):
    plain, dropped = weights_of(path, 0, rate=0.0), weights_of(path, 7)
    both = (plain[0] > 0) & (plain[1] > 0)
    assert np.any((dropped[0] > 0)[both] != (dropped[1] > 0)[both])
    both = (plain[:, :, 0] > 0) & (plain[:, :, 1] > 0)
    assert np.any((dropped[:, :, 0] > 0)[both] != (dropped[:, :, 1] > 0)[both])


@parametrize_path
def test_a_seed_generator_draws_anew(path):
    inputs = testing.make_inputs(CASE)
    tensors = [
        ops.convert_to_tensor(x)
        for x in (inputs.query, inputs.key, inputs.value)
    ]
    generator = keras.random.SeedGenerator(1)
    first, second = (
        ops.convert_to_numpy(
            PATHS[path](
                *tensors,
                inputs.permutation,
                dropout=RATE,
                dropout_seed=generator,
            )
        )
        for _ in range(2)
    )
    assert np.any(first != second)


@parametrize_path
def test_the_log_sum_exp_knows_no_dropout(path):
    inputs = testing.make_inputs(CASE)

    def lse(rate):
        attend = backend.compile(
            lambda *x: PATHS[path](
                *x,
                inputs.permutation,
                dropout=rate,
                dropout_seed=1,
                return_lse=True,
            )[1]
        )
        tensors = (inputs.query, inputs.key, inputs.value)
        result = attend(*(ops.convert_to_tensor(x) for x in tensors))
        return np.asarray(ops.convert_to_numpy(result))

    np.testing.assert_allclose(lse(RATE), lse(0.0), rtol=0, atol=2**-20)
