"""These tests run the kernels in Triton's interpreter, on the CPU.

The interpreter must be chosen before a kernel is defined, so they need a
process of their own: `tests/run.py` starts it.
"""

import os
import threading

import numpy as np
import pytest

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
# The interpreter keeps its state in globals; devices call from their threads.
ONE_AT_A_TIME = threading.Lock()
if INTERPRETS:  # two devices of JAX, read when it first uses one
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"


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
    from keras_sa.triton import launch as triton_launch

    smallest = triton_launch.Configuration(16, 16, 4, 1)
    table = dict.fromkeys(triton_launch.CONFIGURATIONS, smallest)
    monkeypatch.setattr(triton_launch, "CONFIGURATIONS", table)


@pytest.fixture(autouse=True)
def calls_of_jax(monkeypatch):
    """On JAX, a call of a kernel becomes a callback into the interpreter."""
    import keras

    if not INTERPRETS or keras.config.backend() != "jax":
        return
    from keras_sa.backend import jax as jax_devices
    from keras_sa.triton import jax as jax_triton_calls

    monkeypatch.setattr(jax_devices, "why_no_triton_on", lambda device: None)
    monkeypatch.setattr(jax_devices, "capability", lambda tensor: 80)
    monkeypatch.setattr(
        jax_triton_calls.jax_triton, "triton_call", call_interpreter
    )


def call_interpreter(
    *arguments,
    kernel,
    out_shape,
    grid,
    num_warps,
    num_stages,
    compute_capability,
    **constants,
):
    """What `jax_triton.triton_call` does, by the interpreter."""
    import jax

    inputs = [x for x in arguments if hasattr(x, "shape")]
    scalars = arguments[len(inputs) :]
    assert not any(hasattr(x, "shape") for x in scalars)

    def run(*inputs):
        inputs = [to_torch(x) for x in inputs]
        outputs = [to_torch(np.zeros(x.shape, x.dtype)) for x in out_shape]
        for output in outputs:
            output.fill_(float("nan"))
        with ONE_AT_A_TIME:
            kernel[grid](*inputs, *scalars, *outputs, **constants)
        return tuple(to_numpy(x, y.dtype) for x, y in zip(outputs, out_shape))

    return jax.pure_callback(run, tuple(out_shape), *inputs)


def to_torch(array):
    """A copy; bfloat16, which numpy has not, by its bits."""
    import torch

    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor, dtype):
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.numpy()
