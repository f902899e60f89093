"""What the shared cases do not say about the sliding window."""

import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import dense_attention
from keras_sa.ops import sliding_window_attention
from keras_sa.patterns import SlidingWindow
from tests import testing

CASE = testing.Case("plain", length=23, head_dim=4)


def run(attend, *tensors):
    tensors = (ops.convert_to_tensor(x) for x in tensors)
    return np.asarray(ops.convert_to_numpy(backend.compile(attend)(*tensors)))


def mask_of(length, window, is_causal):
    mask = SlidingWindow(window).mask(length, is_causal=is_causal)
    return np.asarray(ops.convert_to_numpy(mask))


def tensors_of(case):
    inputs = testing.make_inputs(case)
    return inputs.query, inputs.key, inputs.value


@pytest.mark.parametrize("is_causal", [False, True])
def test_differs_from_dense_where_the_window_hides(is_causal):
    tensors = tensors_of(CASE)
    everything = np.tril(np.ones((23, 23), bool)) if is_causal else None
    sparse = run(
        lambda *x: sliding_window_attention(
            *x, window_size=5, is_causal=is_causal
        ),
        *tensors,
    )
    dense = run(lambda *x: dense_attention(*x, everything), *tensors)
    window = mask_of(23, 5, is_causal)
    visible = window.sum(axis=1)
    everybody = np.arange(1, 24) if is_causal else np.full(23, 23)
    difference = np.abs(sparse - dense).max(axis=(0, 2, 3))
    assert np.all(difference[visible < everybody] > 1e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_weights_count_the_keys(is_causal):
    """With equal scores the log-sum-exp is the log of the count."""
    length, window = 12, 5
    x = np.zeros((1, length, 1, 1), "float32")
    lse = run(
        lambda x: sliding_window_attention(
            x, x, x, window_size=window, is_causal=is_causal, return_lse=True
        )[1],
        x,
    )
    mask = mask_of(length, window, is_causal)
    np.testing.assert_allclose(
        np.exp(lse[0, :, 0]), mask.sum(axis=1), rtol=1e-6
    )


def test_huge_window_is_full_attention():
    tensors = tensors_of(CASE)
    sparse = run(
        lambda *x: sliding_window_attention(*x, window_size=10**6), *tensors
    )
    dense = run(dense_attention, *tensors)
    np.testing.assert_allclose(sparse, dense, rtol=0, atol=2**-20)


def test_scale_may_be_a_tensor():
    tensors = tensors_of(CASE)
    number = run(
        lambda *x: sliding_window_attention(*x, window_size=5, scale=0.3),
        *tensors,
    )
    tensor = run(
        lambda *x: sliding_window_attention(*x[:3], window_size=5, scale=x[3]),
        *tensors,
        np.float32(0.3),
    )
    np.testing.assert_allclose(tensor, number, rtol=0, atol=2**-20)
