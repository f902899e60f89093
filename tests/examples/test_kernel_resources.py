"""Ahead-of-time compilation of every row of the table of tile sizes."""

import importlib

import keras
import pytest

from keras_sa import triton as triton_loading
from keras_sa.triton import launch as triton_launch

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
        "attn_logits_soft_cap": 50.0,
        "exclude_local": (31, 0),
        "has_sinks": True,
    },
    "identity": {"order_shape": None},
}
# Too few rows in a tile for the product of a warp group: where more would
# spill, and a group of query heads.
WITHOUT_WARP_GROUPS = {("key_value_gradient", 256), ("decode", None)}
# Registers per thread on sm_80 and sm_90, by head dim, in the eights in which
# they are given out: what triton 3.7.1 takes. More would be a regression.
REGISTERS = {
    ("forward", "bfloat16"): {
        16: (160, 136),
        32: (128, 168),
        64: (184, 128),
        128: (240, 248),
        256: (248, 200),
    },
    ("forward", "float32"): {
        16: (168, 168),
        32: (192, 192),
        64: (128, 104),
        128: (64, 64),
        256: (112, 112),
    },
    ("query_gradient", "bfloat16"): {
        16: (168, 160),
        32: (216, 168),
        64: (168, 136),
        128: (192, 216),
        256: (192, 240),
    },
    ("query_gradient", "float32"): {
        16: (168, 168),
        32: (208, 216),
        64: (128, 104),
        128: (160, 160),
        256: (152, 128),
    },
    ("key_value_gradient", "bfloat16"): {
        16: (255, 216),
        32: (240, 184),
        64: (240, 216),
        128: (232, 255),
        256: (184, 168),
    },
    ("key_value_gradient", "float32"): {
        16: (112, 128),
        32: (216, 216),
        64: (120, 112),
        128: (160, 120),
        256: (120, 112),
    },
    ("decode", "bfloat16"): {
        16: (96, 80),
        32: (64, 64),
        64: (72, 72),
        128: (120, 96),
        256: (120, 120),
    },
    ("decode", "float32"): {
        16: (64, 64),
        32: (88, 80),
        64: (80, 72),
        128: (96, 96),
        256: (104, 112),
    },
}
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
    stated = REGISTERS[kernel, dtype][dim][capability == 90]
    assert resources.registers <= stated
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
