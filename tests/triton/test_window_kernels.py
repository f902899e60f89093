"""Values and gradients of the Triton kernels against the oracle in float64."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_sa.triton import launch as triton_launch
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() not in ("jax", "torch"),
    reason="the kernels run on torch and JAX",
)
CASES = [
    case
    for case in testing.CASES
    if case.op != "block_routed_attention"
    and case.attention_mask == "none"
    # `triton_launch.why_not` refuses these.
    and case.hidden_first is None
    and not case.hidden_windows
]
# A few of them in the smallest tiles, of which a program visits several.
SEVERAL_TILES = [
    case
    for case in CASES
    if case.name
    in (
        "sliding-one_kv_head",
        "sliding-left_sinks",
        "window-odd_window_causal",
        "window-per_head_left_causal",
        "window-exclude_local",
        "window-empty_one_kv_head",
        "block-length_is_blocks_plus_1",
        "block-ragged_causal",
    )
]
EXTRA = [
    # Head dims that no power of two holds exactly.
    testing.Case("window-dims", head_dim=40, value_dim=24, batch=1, window=9),
    testing.Case(
        "window-long",
        batch=1,
        length=130,
        heads=2,
        kv_heads=1,
        head_dim=32,
        value_dim=32,
        window=20,
        is_causal=True,
        permutation="shared",
    ),
    testing.Case(
        "block-long-everything",
        batch=2,
        length=90,
        heads=3,
        kv_heads=1,
        head_dim=16,
        value_dim=16,
        window=40,
        is_causal=True,
        permutation="per_head",
        neighborhood="block",
        padding="left",
        exclude_local=3,
        attn_logits_soft_cap=0.9,
        sinks=True,
    ),
]


def assert_accurate(case, dtype):
    inputs = testing.make_inputs(case, dtype)
    exact, single = testing.references(case, dtype)
    result = testing.case_runner(case, "triton", dtype)(inputs, dtype)
    scale = max(np.abs(x).max() for x in inputs.differentiable.values())
    testing.assert_close_to_oracle(result, exact, single, dtype, scale)
    of_values, of_gradients = testing.KERNEL_BOUNDS[dtype]
    assert testing.relative_error(result.output, exact.output) <= of_values
    assert testing.relative_error(result.lse, exact.lse) <= of_values
    for name, gradient in result.gradients.items():
        error = testing.relative_error(gradient, exact.gradients[name])
        assert error <= of_gradients, name


# On JAX the same kernels run: a few cases show that they are called rightly.
ALL = CASES if keras.config.backend() == "torch" else SEVERAL_TILES


@pytest.mark.parametrize("case", ALL + EXTRA, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_value_and_gradients(case, dtype):
    assert_accurate(case, dtype)


@pytest.mark.parametrize("case", EXTRA, ids=str)
def test_float16(case):
    assert_accurate(case, "float16")


@pytest.mark.skipif(
    keras.config.backend() == "jax", reason="the kernels are those of torch"
)
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("case", SEVERAL_TILES + EXTRA, ids=str)
def test_many_tiles(case):
    assert_accurate(case, "float32")


@pytest.mark.parametrize("case", EXTRA, ids=str)
def test_offsets_of_64_bits(case, monkeypatch):
    monkeypatch.setattr(triton_launch, "_LARGEST_INT32", 0)
    assert_accurate(case, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bounds_would_catch_a_shifted_window(dtype, monkeypatch):
    """The same bounds refuse a window that is one slot too wide."""
    scalars = triton_launch.Problem.scalars.fget

    def shifted(problem):
        return scalars(dataclasses.replace(problem, left=problem.left + 1))

    monkeypatch.setattr(triton_launch.Problem, "scalars", property(shifted))
    with pytest.raises(AssertionError):
        assert_accurate(EXTRA[1], dtype)
