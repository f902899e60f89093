"""A causal output never depends on a later token, whatever else is asked."""

import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from tests import testing

LENGTH, CUT = 23, 11
CASE = testing.Case("is_causal", length=LENGTH, head_dim=5, value_dim=5)
ORDER = np.random.default_rng(4).permutation(LENGTH).astype("int32")
MASK = np.random.default_rng(5).random((1, LENGTH, LENGTH)) < 0.7
PADDING = testing.make_padding_mask("ragged", 3, LENGTH)
EXTRAS = {
    "plain": {},
    "dropout": {"dropout": 0.4, "dropout_seed": 3},
    "attention_mask": {"attention_mask": MASK},
    "padding": {"padding_mask": PADDING},
    "sinks_and_cap": {
        "sinks": np.ones(4, "float32"),
        "attn_logits_soft_cap": 1.5,
        "return_lse": True,
    },
    "narrow": {"window_size": 1},
}


def can_do(path, extra):
    if path == "block_routed":
        return extra != "narrow"
    return path != "native_block" or extra in ("plain", "padding", "narrow")


RUNS = [(p, e) for p in testing.PATHS for e in EXTRAS if can_do(p, e)]


def perturb(array, first):
    """The same up to a token, something else from there on."""
    noise = np.random.default_rng(8).normal(size=array.shape)
    changed = array.copy()
    changed[:, first:] = 5 * noise[:, first:]
    return changed


@pytest.mark.parametrize("path, extra", RUNS)
def test_the_future_does_not_matter(path, extra):
    inputs = testing.make_inputs(CASE)
    tensors = (inputs.query, inputs.key, inputs.value)
    changed = [perturb(x, CUT) for x in tensors]
    if path == "block_routed" and extra == "dropout":
        # Queries choose other blocks when keys change, and the noise of the
        # dropout belongs to places in the tiles: compare the values' way.
        changed[:2] = tensors[:2]
    attend = backend.compile(
        lambda *x: testing.PATHS[path](
            *x, ORDER, is_causal=True, **EXTRAS[extra]
        )
    )

    def run(arrays):
        result = attend(*(ops.convert_to_tensor(x) for x in arrays))
        results = result if isinstance(result, tuple) else (result,)
        return [np.asarray(ops.convert_to_numpy(x)) for x in results]

    for before, after in zip(run(tensors), run(changed)):
        np.testing.assert_array_equal(before[:, :CUT], after[:, :CUT])
        assert np.any(before[:, CUT:] != after[:, CUT:])


@pytest.mark.parametrize("path", testing.PATHS)
def test_without_causal_the_future_does_matter(path):
    inputs = testing.make_inputs(CASE)
    tensors = (inputs.query, inputs.key, inputs.value)
    attend = backend.compile(lambda *x: testing.PATHS[path](*x, ORDER))
    before, after = (
        ops.convert_to_numpy(
            attend(*(ops.convert_to_tensor(x) for x in arrays))
        )
        for arrays in (tensors, [perturb(x, CUT) for x in tensors])
    )
    assert np.any(before[:, :CUT] != after[:, :CUT])
