"""These tests run the kernels in Triton's interpreter, on the CPU.

The interpreter must be chosen before a kernel is defined, so they need a
process of their own: `tests/run.py` starts it.
"""

import os

import numpy as np
import pytest

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items):
    reason = "needs a process with TRITON_INTERPRET=1: python tests/run.py"
    for item in items:
        if "tests/triton" in item.path.as_posix() and not INTERPRETS:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def exact_bfloat16_products():
    """The interpreter holds bfloat16 as the bits of an integer and multiplies
    those; here a product is that of the numbers."""
    if not INTERPRETS:
        yield
        return
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    original = builder.create_dot

    def create_dot(self, a, b, d, *options):
        a, b = (_as_float32(x, interpreter) for x in (a, b))
        return original(self, a, b, d, *options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_dot", create_dot)
        yield


def _as_float32(handle, interpreter):
    import triton.language as tl

    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Uninitialised memory of torch holds NaN: what a kernel forgets shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def small_tiles(monkeypatch):
    """The smallest tiles in place of the table's, which hold most cases
    whole."""
    from keras_sa.ops.windowed import triton_launch

    smallest = triton_launch.Configuration(16, 16, 4, 1)
    table = dict.fromkeys(triton_launch.CONFIGURATIONS, smallest)
    monkeypatch.setattr(triton_launch, "CONFIGURATIONS", table)
    monkeypatch.setattr(triton_launch, "HOPPER", {})
