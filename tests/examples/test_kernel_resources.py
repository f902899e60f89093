"""Ahead-of-time compilation of every row of the table of tile sizes."""

import importlib

import keras
import pytest

from keras_sa.ops import triton_loading
from keras_sa.ops.windowed import triton_launch

if not triton_loading.is_installed():
    pytest.skip("Triton is not installed", allow_module_level=True)
triton_loading.load()
kernel_resources = importlib.import_module("benchmarks.kernel_resources")

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch",
    reason="the machine code is the same on every backend",
)
DTYPES = {2: "bfloat16", 4: "float32"}
# (sm_80 has 163 KiB; 99 KiB is what every newer GPU has, consumer ones too.)
SHARED_MEMORY = {80: 99 * 1024, 90: 227 * 1024}
# What takes more registers: soft cap and exclusion.
SCORING = {
    "plain": {},
    "cap_exclusion_sinks": {
        "logit_soft_cap": 50.0,
        "exclude_local": (31, 0),
        "has_sinks": True,
    },
    "identity": {"order_shape": None},
}
# Too few rows in a tile for the product of a warp group: where more would
# spill, and a group of query heads.
WITHOUT_WARP_GROUPS = {("key_value_gradient", 256), ("decode", None)}
# Bytes of stack where nothing better was found: eight registers of float32.
SPILLED = {("key_value_gradient", "float32", 128, "identity", 80): 32}


def runs():
    """Row, scoring and capability; few of them are not slow."""
    for kernel, itemsize, dim in triton_launch.CONFIGURATIONS:
        for scoring in SCORING:
            if kernel == "decode" and scoring == "identity":
                continue  # it has no order
            is_quick = scoring == "plain" or (
                scoring != "identity" and itemsize == 2 and kernel != "decode"
            )
            marks = [] if is_quick and dim > 16 else [pytest.mark.slow]
            for capability in (80, 90):
                yield pytest.param(
                    kernel,
                    DTYPES[itemsize],
                    dim,
                    scoring,
                    capability,
                    marks=marks,
                )


@pytest.mark.parametrize("kernel, dtype, dim, scoring, capability", runs())
def test_resources(kernel, dtype, dim, scoring, capability):
    problem = kernel_resources.make_problem(
        dim, dtype, capability, **SCORING[scoring]
    )
    resources = kernel_resources.compile_kernel(kernel, problem, dtype)
    run = (kernel, dtype, dim, scoring, capability)
    assert resources.stack <= SPILLED.get(run, 0)
    assert resources.registers <= 255
    assert resources.shared_memory <= SHARED_MEMORY[capability]
    if dim >= 32:
        assert resources.wide_loads > 0
    if dtype == "float32":
        return
    assert resources.warp_group_products + resources.warp_products > 0
    small = {(kernel, dim), (kernel, None)} & WITHOUT_WARP_GROUPS
    if capability == 90 and not small:
        assert resources.warp_group_products > 0


def test_spilling_is_seen(monkeypatch):
    """A tile that is too large leaves a stack."""
    too_large = triton_launch.Configuration(64, 64, 4, 2)
    row = ("key_value_gradient", 2, 256)
    monkeypatch.setitem(triton_launch.CONFIGURATIONS, row, too_large)
    problem = kernel_resources.make_problem(256, "bfloat16", 80)
    resources = kernel_resources.compile_kernel(row[0], problem, "bfloat16")
    assert resources.stack > 0
