"""The oracle, against loops in plain numpy."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import dense_attention
from tests import testing

B, N, H, K, D, E = 2, 7, 6, 3, 4, 5


def loops(query, key, value, mask, scale, attn_logits_soft_cap, sinks):
    """Attention one row at a time, in Python floats."""
    batch, length, heads = query.shape[:3]
    output = np.zeros((batch, length, heads, value.shape[3]))
    lse = np.full((batch, length, heads), -np.inf)
    weights = np.zeros((batch, heads, length, length))
    group = heads // key.shape[2]
    for b, h, i in itertools.product(range(batch), range(heads), range(length)):
        terms = {}
        for j in np.flatnonzero(mask[b, h, i]):
            score = float(query[b, i, h] @ key[b, j, h // group]) * scale
            if attn_logits_soft_cap is not None:
                score = attn_logits_soft_cap * np.tanh(
                    score / attn_logits_soft_cap
                )
            terms[j] = np.exp(score)
        total = sum(terms.values())
        if sinks is not None:
            total += np.exp(float(sinks[h]))
        for j, term in terms.items():
            weights[b, h, i, j] = term / total
            output[b, i, h] += term / total * value[b, j, h // group]
        if total:
            lse[b, i, h] = np.log(total)
    return output, lse, weights


def make_tensors(kv_heads):
    rng = np.random.default_rng(5)
    query = rng.normal(size=(B, N, H, D))
    key = rng.normal(size=(B, N, kv_heads, D))
    value = rng.normal(size=(B, N, kv_heads, E))
    mask = rng.random((B, H, N, N)) < 0.5
    mask[1, 2, 3] = False
    return query, key, value, mask, rng.normal(size=H)


@pytest.mark.parametrize("kv_heads", [1, K, H])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("attn_logits_soft_cap", [None, 1.25])
def test_equals_loops(kv_heads, with_sinks, attn_logits_soft_cap):
    query, key, value, mask, sinks = make_tensors(kv_heads)
    sinks = sinks if with_sinks else None

    def attend(query, key, value):
        return dense_attention(
            query,
            key,
            value,
            mask,
            scale=0.7,
            attn_logits_soft_cap=attn_logits_soft_cap,
            sinks=sinks,
            return_lse=True,
            return_weights=True,
        )

    with backend.float64():
        tensors = (
            ops.convert_to_tensor(x, "float64") for x in (query, key, value)
        )
        results = backend.compile(attend)(*tensors)
        results = [np.asarray(ops.convert_to_numpy(x)) for x in results]
    expected = loops(query, key, value, mask, 0.7, attn_logits_soft_cap, sinks)
    for actual, wanted in zip(results, expected):
        assert actual.dtype == np.float64
        # Sums of at most 7 terms: a few roundings of float64.
        np.testing.assert_allclose(actual, wanted, rtol=2**-44, atol=2**-44)


def test_default_scale_and_no_mask():
    query, key, value, _, _ = make_tensors(K)
    with backend.float64():
        tensors = [
            ops.convert_to_tensor(x, "float64") for x in (query, key, value)
        ]
        actual = backend.compile(dense_attention)(*tensors)
        actual = np.asarray(ops.convert_to_numpy(actual))
    mask = np.ones((B, H, N, N), bool)
    expected, _, _ = loops(query, key, value, mask, D**-0.5, None, None)
    np.testing.assert_allclose(actual, expected, rtol=2**-44, atol=2**-44)


def test_empty_row():
    """Output 0, log-sum-exp -inf, finite gradients for everybody."""
    case = testing.Case("empty", batch=B, length=N, heads=H, kv_heads=K)
    inputs = testing.make_inputs(case)
    mask = np.ones((N, N), bool)
    mask[4] = False

    def attend(query, key, value):
        return dense_attention(query, key, value, mask, return_lse=True)

    result = testing.run_with_gradients(attend, inputs, "float32")
    assert np.all(result.output[:, 4] == 0)
    assert np.all(result.lse[:, 4] == -np.inf)
    assert np.all(np.isfinite(np.delete(result.lse, 4, axis=1)))
    for gradient in result.gradients.values():
        assert np.all(np.isfinite(gradient))
    assert np.all(result.gradients["query"][:, 4] == 0)
    assert np.any(result.gradients["query"][:, 3] != 0)


def test_empty_row_with_sinks_is_the_sink():
    query, key, value, _, sinks = make_tensors(K)
    output, lse = backend.compile(
        lambda *tensors: dense_attention(
            *tensors,
            np.zeros((N, N), bool),
            sinks=sinks.astype("float32"),
            return_lse=True,
        )
    )(*(ops.convert_to_tensor(x, "float32") for x in (query, key, value)))
    assert np.all(ops.convert_to_numpy(output) == 0)
    expected = np.broadcast_to(sinks.astype("float32"), (B, N, H))
    np.testing.assert_array_equal(ops.convert_to_numpy(lse), expected)


def test_gradients_equal_differences():
    """Central differences of the loops' loss, through the lse as well."""
    case = testing.Case(
        "differences",
        batch=1,
        length=4,
        heads=2,
        kv_heads=1,
        head_dim=3,
        sinks=True,
    )
    inputs = testing.make_inputs(case)
    mask = np.tril(np.ones((4, 4), bool))

    def attend(query, key, value, sinks):
        return dense_attention(
            query,
            key,
            value,
            mask,
            sinks=sinks,
            attn_logits_soft_cap=2.0,
            return_lse=True,
        )

    def loss(query, key, value, sinks):
        full = np.broadcast_to(mask, (1, 2, 4, 4))
        output, lse, _ = loops(query, key, value, full, 3**-0.5, 2.0, sinks)
        return np.sum(output * inputs.output_weight) + np.sum(
            lse * inputs.lse_weight
        )

    result = testing.run_with_gradients(attend, inputs, "float64")
    tensors = {k: v.astype("float64") for k, v in inputs.differentiable.items()}
    step = 2**-17  # the cube root of epsilon balances both errors
    for name, tensor in tensors.items():
        expected = np.zeros_like(tensor)
        for place in np.ndindex(tensor.shape):
            moved = [tensor.copy(), tensor.copy()]
            moved[0][place] += step
            moved[1][place] -= step
            up, down = (loss(**{**tensors, name: x}) for x in moved)
            expected[place] = (up - down) / (2 * step)
        np.testing.assert_allclose(
            result.gradients[name], expected, rtol=0, atol=100 * step**2
        )


@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_dtypes_of_the_results(dtype):
    x = ops.zeros((1, 3, 2, 4), dtype=dtype)
    output, lse, weights = dense_attention(
        x, x, x, return_lse=True, return_weights=True
    )
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    for result in (lse, weights):
        assert keras.backend.standardize_dtype(result.dtype) == "float32"


def test_integer_mask_means_the_same():
    query, key, value, mask, _ = make_tensors(K)
    tensors = [ops.convert_to_tensor(x, "float32") for x in (query, key, value)]
    boolean = dense_attention(*tensors, mask)
    integer = dense_attention(*tensors, mask.astype("int32"))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(boolean), ops.convert_to_numpy(integer)
    )


@pytest.mark.parametrize(
    "mask", [np.ones((N, N), "float32"), np.ones((N, N), "float16")]
)
def test_float_masks_raise(mask):
    query, key, value, _, _ = make_tensors(K)
    tensors = [ops.convert_to_tensor(x, "float32") for x in (query, key, value)]
    with pytest.raises(ValueError, match="(?s)expected.*Received"):
        dense_attention(*tensors, mask)
