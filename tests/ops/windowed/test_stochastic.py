"""What the shared cases do not say about stochastic attention."""

import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import dense_attention
from keras_sa.ops import sample_permutation
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from tests import testing

LENGTH = 13
CASE = testing.Case("plain", batch=2, length=LENGTH, head_dim=4)
SEEDS = (0, 5, 9)
KINDS = [("window", 2 * LENGTH - 1), ("block", LENGTH), ("block", LENGTH + 4)]


def to_tensors(*arrays):
    return [ops.convert_to_tensor(x) for x in arrays]


def to_numpy(x):
    return np.asarray(ops.convert_to_numpy(x))


def tensors_of(case):
    inputs = testing.make_inputs(case)
    return to_tensors(inputs.query, inputs.key, inputs.value)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("neighborhood, window", KINDS)
@pytest.mark.parametrize("implementation", ["portable", None])
def test_a_window_over_everything_is_full_attention(
    neighborhood, window, is_causal, implementation
):
    case = testing.Case("full", batch=2, length=LENGTH, head_dim=5, value_dim=5)
    tensors = tensors_of(case)
    everything = np.tril(np.ones((LENGTH, LENGTH), bool)) if is_causal else None
    exact = to_numpy(
        backend.compile(lambda *x: dense_attention(*x, everything))(*tensors)
    )
    attend = backend.compile(
        lambda *x: stochastic_attention(
            *x,
            window_size=window,
            neighborhood=neighborhood,
            is_causal=is_causal,
            implementation=implementation,
        )
    )
    for seed in SEEDS:
        actual = to_numpy(attend(*tensors, sample_permutation(LENGTH, seed)))
        # Both are sums of 13 terms below 4, in float32.
        np.testing.assert_allclose(actual, exact, rtol=0, atol=2**-19)


@pytest.mark.parametrize("neighborhood", ["window", "block"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_differs_from_dense_and_between_seeds(neighborhood, is_causal):
    tensors = tensors_of(CASE)
    everything = np.tril(np.ones((LENGTH, LENGTH), bool)) if is_causal else None
    dense = to_numpy(dense_attention(*tensors, everything))
    attend = backend.compile(
        lambda *x: stochastic_attention(
            *x, window_size=4, neighborhood=neighborhood, is_causal=is_causal
        )
    )
    outputs = [
        to_numpy(attend(*tensors, sample_permutation(LENGTH, seed)))
        for seed in SEEDS
    ]
    for output in outputs:
        assert np.abs(output - dense).max() > 0.1
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1


def test_identity_permutation_is_the_sliding_window():
    tensors = tensors_of(CASE)
    order = np.arange(LENGTH, dtype="int32")
    stochastic = backend.compile(
        lambda *x: stochastic_attention(*x, order, window_size=6)
    )(*tensors)
    sliding = backend.compile(
        lambda *x: sliding_window_attention(*x, window_size=6)
    )(*tensors)
    np.testing.assert_allclose(
        to_numpy(stochastic), to_numpy(sliding), rtol=0, atol=2**-20
    )


@pytest.mark.parametrize("neighborhood", ["window", "block"])
def test_a_shared_permutation_equals_its_copies(neighborhood):
    tensors = tensors_of(CASE)
    order = np.random.default_rng(1).permutation(LENGTH).astype("int32")

    def run(order):
        attend = backend.compile(
            lambda *x: stochastic_attention(
                *x,
                order,
                window_size=4,
                neighborhood=neighborhood,
                is_causal=True,
            )
        )
        return to_numpy(attend(*tensors))

    shared = run(order)
    for lead in ((1,), (2,), (1, 2), (2, 2)):
        copies = np.broadcast_to(order, (*lead, LENGTH)).copy()
        np.testing.assert_allclose(run(copies), shared, rtol=0, atol=2**-20)


def test_traced_permutation_gives_the_values_of_a_constant_one():
    tensors = tensors_of(CASE)
    order = np.random.default_rng(1).permutation(LENGTH).astype("int32")
    traced = backend.compile(
        lambda *x: stochastic_attention(*x, window_size=4, is_causal=True)
    )(*tensors, ops.convert_to_tensor(order))
    constant = backend.compile(
        lambda *x: stochastic_attention(
            *x, order, window_size=4, is_causal=True
        )
    )(*tensors)
    np.testing.assert_allclose(
        to_numpy(traced), to_numpy(constant), rtol=0, atol=2**-20
    )


def test_native_block_equals_portable_in_float32():
    case = testing.Case(
        "native", batch=2, length=LENGTH, head_dim=5, value_dim=5
    )
    tensors = tensors_of(case)
    order = sample_permutation(LENGTH, 3)
    outputs = [
        to_numpy(
            backend.compile(
                lambda *x, name=name: stochastic_attention(
                    *x,
                    window_size=4,
                    neighborhood="block",
                    is_causal=True,
                    implementation=name,
                )
            )(*tensors, order)
        )
        for name in ("native_block", "portable")
    ]
    np.testing.assert_allclose(*outputs, rtol=0, atol=2**-20)
