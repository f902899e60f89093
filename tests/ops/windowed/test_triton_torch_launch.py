"""Launches of the Triton kernels by torch, up to where a GPU would run them."""

import keras
import pytest

from keras_sa import triton as triton_loading

pytestmark = [
    pytest.mark.skipif(
        keras.config.backend() != "torch", reason="launches by torch"
    ),
    pytest.mark.skipif(
        not triton_loading.is_installed(), reason="Triton is not installed"
    ),
]


class Driver:
    """Of a GPU that is not there: kernels compile for it."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def launched(monkeypatch):
    """The kernels that were launched, compiled for sm_90, and do not run."""
    from triton.runtime import driver

    from keras_sa.backend import torch as torch_devices
    from keras_sa.triton import kernels as triton_kernels
    from keras_sa.triton import torch as torch_triton_ops

    kernels = []

    def launch(kernel, launch, *arguments):
        compiled = kernel.warmup(
            *arguments,
            grid=launch.grid,
            **launch.constants,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
        )
        kernels.append((kernel, compiled))

    monkeypatch.setattr(torch_devices, "capability", lambda tensor: 90)
    monkeypatch.setattr(torch_triton_ops, "_run", launch)
    # Compiled for another driver, a kernel would be taken for this one's.
    for name in vars(triton_kernels):
        if name.endswith("_kernel"):
            getattr(triton_kernels, name).device_caches.clear()
    monkeypatch.setattr(driver, "_active", Driver())
    yield kernels
    for kernel, _ in kernels:
        kernel.device_caches.clear()


def call_all(batch, length):
    """Every operator once, forward and backward."""
    import torch

    from keras_sa.triton import torch as operators

    query, key = (
        torch.zeros(batch, length, heads, 64, dtype=torch.bfloat16)
        for heads in (8, 4)
    )
    order = torch.arange(length, dtype=torch.int32)
    settings = (128, 127, 0, True, -1, -1, 0.125, 0.0)
    output, lse = operators.windowed_attention(
        query, key, key, order[None, None], None, *settings
    )
    operators.windowed_attention_gradients(
        query, key, key, order[None, None], output, lse, output, None, *settings
    )
    operators.neighbor_attention(
        query[:, :1], key, key, order[None], None, 0.125, 0.0
    )


def test_one_compilation_serves_all_lengths(launched):
    for batch, length in ((1, 64), (2, 100), (3, 4096), (1, 1), (1, 17)):
        call_all(batch, length)
    assert len(launched) == 5 * 4
    assert len({kernel for kernel, _ in launched}) == 4
    compiled = {id(compiled) for _, compiled in launched}
    assert len(compiled) == 4


def test_launches_are_those_of_the_table(launched):
    from keras_sa.triton import launch as triton_launch

    call_all(1, 64)
    for kernel, compiled in launched:
        name = kernel.__name__.removesuffix("_kernel")
        row = triton_launch.table_of(90)[name, 2, 64]
        assert compiled.metadata.num_warps == row.num_warps
        assert compiled.metadata.target.arch == 90
        assert "wgmma" in compiled.asm["ptx"] or name == "decode"
