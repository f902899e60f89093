"""Padding, wherever it is and whatever it holds, changes nothing."""

import dataclasses

import numpy as np
import pytest
from keras import ops

from keras_sa import backend as kb
from keras_sa.ops import sample_permutation
from tests import testing

AMOUNTS = (0, 3, 5)
CASE = testing.Case("padded", length=19, head_dim=5, value_dim=5)
SEED = 6
# float32 rounding of scores and sums of this size; another neighbour, or
# padding that was seen, would change some value by a thousand times more.
ROUNDING = 2**-18
LARGE = {"float32": 1e30, "bfloat16": 1e30, "float16": 6e4}

parametrize_path = pytest.mark.parametrize("path", testing.PATHS)
parametrize_causal = pytest.mark.parametrize("is_causal", [False, True])


def run(path, tensors, padding_mask, *, is_causal, per_head=False):
    """Samples the permutation and attends."""

    def attend(*tensors):
        order = sample_permutation(
            tensors[0].shape[1],
            SEED,
            padding_mask=padding_mask,
            num_key_value_heads=tensors[1].shape[2] if per_head else None,
        )
        return testing.PATHS[path](
            *tensors, order, is_causal=is_causal, padding_mask=padding_mask
        )

    tensors = [ops.convert_to_tensor(x) for x in tensors]
    output = kb.compile(attend)(*tensors)
    return np.asarray(ops.convert_to_numpy(output))


@parametrize_path
@parametrize_causal
@pytest.mark.parametrize("per_head", [False, True])
def test_left_and_right_padding_equal_none(path, is_causal, per_head):
    inputs = testing.make_inputs(CASE)
    tensors = [inputs.query, inputs.key, inputs.value]
    options = {"is_causal": is_causal, "per_head": per_head}
    expected = run(path, tensors, None, **options)
    for side in ("left", "right"):
        padded, masks = zip(*(testing.pad(x, AMOUNTS, side) for x in tensors))
        mask = masks[0]
        for x in padded:
            x[~mask] = 7.0
        actual = run(path, padded, mask, **options)
        real = actual[mask].reshape(expected.shape)
        np.testing.assert_allclose(real, expected, rtol=0, atol=ROUNDING)
        assert np.all(actual[~mask] == 0)


def huge(inputs, dtype, mask):
    """The inputs with enormous numbers of both signs in the padding."""
    changes = {}
    for name in ("query", "key", "value"):
        array = getattr(inputs, name).copy()
        signs = np.sign(array[~mask])
        array[~mask] = LARGE[dtype] * np.where(signs == 0, 1, signs)
        changes[name] = testing.round_to(array, dtype)
    return dataclasses.replace(inputs, **changes)


@parametrize_path
@pytest.mark.parametrize("kind", ["ragged", "empty"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_huge_padding(path, kind, dtype, backend):
    """Exactly the values and gradients of harmless padding."""
    if (path, backend, dtype) == ("native_block", "jax", "float16"):
        pytest.skip("`keras.ops.dot_product_attention` has no float16 on CPUs")
    case = dataclasses.replace(CASE, padding=kind, permutation="shared")
    inputs = testing.make_inputs(case, dtype)
    mask = inputs.padding_mask
    with_lse = path != "native_block"

    def attend(query, key, value):
        extra = {"return_lse": True} if with_lse else {}
        return testing.PATHS[path](
            query,
            key,
            value,
            inputs.permutation,
            padding_mask=mask,
            **extra,
        )

    runner = testing.Runner(attend, inputs, with_lse)
    expected = runner(inputs, dtype)
    actual = runner(huge(inputs, dtype, mask), dtype)
    np.testing.assert_array_equal(actual.output, expected.output)
    assert np.all(actual.output[~mask] == 0)
    if with_lse:
        np.testing.assert_array_equal(actual.lse, expected.lse)
        assert np.all(actual.lse[~mask] == -np.inf)
    for name, gradient in actual.gradients.items():
        assert np.all(np.isfinite(gradient)), name
        np.testing.assert_array_equal(gradient, expected.gradients[name])
        assert np.all(gradient[~mask] == 0), name


@parametrize_path
def test_padding_masks_may_be_integers(path):
    inputs = testing.make_inputs(
        dataclasses.replace(CASE, padding="ragged", permutation="shared")
    )
    tensors = [
        ops.convert_to_tensor(x)
        for x in (inputs.query, inputs.key, inputs.value)
    ]
    outputs = [
        ops.convert_to_numpy(
            kb.compile(
                lambda *x, dtype=dtype: testing.PATHS[path](
                    *x,
                    inputs.permutation,
                    padding_mask=inputs.padding_mask.astype(dtype),
                )
            )(*tensors)
        )
        for dtype in ("bool", "int32")
    ]
    np.testing.assert_array_equal(*outputs)
