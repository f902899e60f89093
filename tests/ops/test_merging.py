"""Merging parts equals one softmax over the union."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import dense_attention
from keras_sa.ops import gated_sum
from keras_sa.ops import merge_attention
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from tests import testing

LENGTH = 17
CASE = testing.Case("merge", length=LENGTH, head_dim=4, sinks=True)


def assert_equal_results(actual, attend_to_union, inputs, with_lse=True):
    exact = testing.run_with_gradients(
        attend_to_union, inputs, "float64", with_lse
    )
    single = testing.run_with_gradients(
        attend_to_union, inputs, "float32", with_lse
    )
    scale = max(np.abs(x).max() for x in inputs.differentiable.values())
    testing.assert_close_to_oracle(actual, exact, single, "float32", scale)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_disjoint_parts_equal_their_union(parts):
    inputs = testing.make_inputs(CASE)
    part = np.random.default_rng(2).integers(0, 4, (LENGTH, LENGTH))
    part[5] = 3  # a row that no part sees
    part[6] = 0  # a row that one part sees

    def merged(query, key, value, sinks):
        results = [
            dense_attention(
                query,
                key,
                value,
                part == index,
                sinks=sinks if index == 0 else None,
                return_lse=True,
            )
            for index in range(parts)
        ]
        outputs, lses = zip(*results)
        return merge_attention(list(outputs), list(lses), return_lse=True)

    def union(query, key, value, sinks):
        return dense_attention(
            query, key, value, part < parts, sinks=sinks, return_lse=True
        )

    actual = testing.run_with_gradients(merged, inputs, "float32")
    assert_equal_results(actual, union, inputs)


def test_all_parts_empty():
    inputs = testing.make_inputs(testing.Case("empty", length=4, batch=1))
    mask = np.zeros((4, 4), bool)
    mask[:2, 0] = True

    def merged(query, key, value):
        results = [
            dense_attention(query, key, value, part, return_lse=True)
            for part in (mask, np.zeros_like(mask))
        ]
        outputs, lses = zip(*results)
        return merge_attention(list(outputs), list(lses), return_lse=True)

    result = testing.run_with_gradients(merged, inputs, "float32")
    assert np.all(result.output[:, 2:] == 0)
    assert np.all(result.lse[:, 2:] == -np.inf)
    assert np.all(np.isfinite(result.lse[:, :2]))
    for gradient in result.gradients.values():
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("neighborhood", ["window", "block"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_small_world_equals_its_union(neighborhood, is_causal):
    """Sliding and stochastic windows, with `exclude_local`, in one softmax."""
    local, window = 5, 6
    case = testing.Case(
        "union",
        length=LENGTH,
        head_dim=4,
        window=window,
        is_causal=is_causal,
        permutation="per_head",
        neighborhood=neighborhood,
        padding="ragged",
    )
    inputs = testing.make_inputs(case)
    sliding = testing.Case(
        "local", length=LENGTH, window=local, is_causal=is_causal
    )
    masks = [testing.oracle_mask(case, inputs)]
    without = dataclasses.replace(inputs, permutation=None)
    masks.append(
        testing.oracle_mask(
            dataclasses.replace(sliding, padding="ragged"), without
        )
    )
    assert np.any(masks[0] & masks[1]), "the exclusion would not be tested"

    def merged(query, key, value):
        common = {
            "is_causal": is_causal,
            "padding_mask": inputs.padding_mask,
            "return_lse": True,
        }
        near = sliding_window_attention(
            query, key, value, window_size=local, **common
        )
        far = stochastic_attention(
            query,
            key,
            value,
            inputs.permutation,
            window_size=window,
            neighborhood=neighborhood,
            exclude_local=local,
            **common,
        )
        return merge_attention(
            [near[0], far[0]], [near[1], far[1]], return_lse=True
        )

    def union(query, key, value):
        return dense_attention(
            query, key, value, masks[0] | masks[1], return_lse=True
        )

    actual = testing.run_with_gradients(merged, inputs, "float32")
    assert_equal_results(actual, union, inputs)


@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_output_keeps_the_dtype(dtype):
    output = ops.ones((1, 2, 3, 4), dtype=dtype)
    lse = ops.zeros((1, 2, 3))
    merged, total = merge_attention(
        [output, output], [lse, lse], return_lse=True
    )
    standardize = keras.backend.standardize_dtype
    assert standardize(merged.dtype) == dtype
    assert standardize(total.dtype) == "float32"


def test_large_log_sum_exps_do_not_overflow():
    outputs = [ops.full((1, 1, 1, 1), x) for x in (1.0, 3.0)]
    lses = [ops.full((1, 1, 1), 3e38) for _ in outputs]
    merged = ops.convert_to_numpy(merge_attention(outputs, lses))
    assert merged.item() == 2.0


def test_gated_sum():
    rng = np.random.default_rng(0)
    paths = [rng.normal(size=(2, 3, 4, 5)).astype("float32") for _ in range(3)]
    gates = [rng.random((2, 3, 4, 1)).astype("float32"), 0.5, paths[0]]
    tensors = [ops.convert_to_tensor(x) for x in paths]
    actual = backend.compile(lambda *x: gated_sum(list(x), gates))(*tensors)
    expected = sum(p.astype("float64") * g for p, g in zip(paths, gates))
    np.testing.assert_allclose(
        ops.convert_to_numpy(actual), expected, rtol=0, atol=2**-19
    )


@pytest.mark.parametrize("op", [gated_sum, merge_attention])
@pytest.mark.parametrize("sizes", [(0, 0), (2, 1), (1, 2)])
def test_unequal_lists_raise(op, sizes):
    path, gate = ops.ones((1, 2, 3, 4)), ops.ones((1, 2, 3))
    with pytest.raises(ValueError, match="(?s)expected.*Received"):
        op([path] * sizes[0], [gate] * sizes[1])
