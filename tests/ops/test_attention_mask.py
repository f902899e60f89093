"""Every form of attention mask; the shared cases compare with the oracle."""

import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from tests import testing

LENGTH = 17
CASE = testing.Case("masked", length=LENGTH, head_dim=4, permutation="shared")
PATHS = [path for path in testing.PATHS if path != "native_block"]


def run(path, mask):
    inputs = testing.make_inputs(CASE)
    attend = backend.compile(
        lambda *x: testing.PATHS[path](
            *x, inputs.permutation, attention_mask=mask, is_causal=True
        )
    )
    tensors = (inputs.query, inputs.key, inputs.value)
    output = attend(*(ops.convert_to_tensor(x) for x in tensors))
    return np.asarray(ops.convert_to_numpy(output))


@pytest.mark.parametrize("path", PATHS)
def test_forms_of_one_mask_mean_the_same(path):
    mask = np.random.default_rng(1).random((1, LENGTH, LENGTH)) < 0.6
    expected = run(path, mask)
    for same in (
        mask.astype("int32"),
        np.broadcast_to(mask, (CASE.batch, LENGTH, LENGTH)).copy(),
    ):
        np.testing.assert_array_equal(run(path, same), expected)
    assert np.any(expected != run(path, None))


@pytest.mark.parametrize("path", PATHS)
def test_a_mask_of_ones_hides_nothing(path):
    ones = np.ones((1, LENGTH, LENGTH), bool)
    np.testing.assert_array_equal(run(path, ones), run(path, None))


@pytest.mark.parametrize("path", PATHS)
def test_a_mask_of_zeros_hides_everything(path):
    assert np.all(run(path, np.zeros((1, LENGTH, LENGTH), bool)) == 0)
