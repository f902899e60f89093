"""When torch takes the Triton kernels; how they compute is in tests/triton."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from keras_sa.backend import triton_loading
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.windowed import api
from keras_sa.ops.windowed import triton as windowed_triton
from keras_sa.triton import launch as triton_launch

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="devices of torch"
)


@pytest.fixture
def fake_gpu(monkeypatch):
    """torch believes in a GPU of the capability in the returned list."""
    import torch

    capability = [9, 0]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: capability
    )
    return capability


def why_no_triton():
    from keras_sa.backend import torch as torch_devices

    return torch_devices.why_no_triton_on("cuda", 0)


def test_without_a_gpu_it_says_so():
    x = ops.zeros((1, 8, 2, 16))
    with pytest.raises(ValueError, match="(?s)NVIDIA GPU.*cpu.*Received"):
        keras_sa.ops.sliding_window_attention(
            x, x, x, window_size=4, implementation="triton"
        )


def test_a_gpu_is_welcome(fake_gpu):
    if not triton_loading.is_installed():
        pytest.skip("Triton is not installed")
    assert why_no_triton() is None


def test_an_old_gpu_is_refused(fake_gpu):
    fake_gpu[:] = [7, 5]
    assert "this one has 7.5" in why_no_triton()


def test_an_amd_gpu_is_refused(fake_gpu, monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    assert "NVIDIA" in why_no_triton()


def test_a_missing_package_is_named(fake_gpu, monkeypatch):
    monkeypatch.setattr(triton_loading, "is_installed", lambda: False)
    assert "pip install triton" in why_no_triton()


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"hidden_first": 3}, "no hidden_first"),
        ({"hidden_windows": ((1, 0, 1), (8, 0, 1))}, "one window at most"),
        ({"hidden_windows": ((4, 4, 2),)}, "none that is dilated"),
        ({"attention_mask": np.ones((1, 8, 8), bool)}, "no attention_mask"),
        ({"dropout": 0.1}, "no dropout"),
    ],
    ids=repr,
)
def test_what_the_kernels_refuse(changes, reason):
    x = ops.zeros((1, 8, 2, 16))
    arguments = api.arguments_of(
        check_inputs(x, x, x), None, reach=(3, 0), window_size=4
    )
    assert triton_launch.why_not(arguments) is None
    arguments = dataclasses.replace(arguments, **changes)
    assert reason in triton_launch.why_not(arguments)


def test_keras_switch():
    assert windowed_triton.by_default(None)
    keras.config.disable_flash_attention()
    try:
        assert not windowed_triton.by_default(None)
    finally:
        keras.config.enable_flash_attention()
    assert windowed_triton.by_default(None)


def test_hopper_has_tiles_of_its_own():
    row = ("forward", 2, 64)
    older, hopper = (triton_launch.table_of(c)[row] for c in (80, 90))
    assert hopper.own == 2 * older.own
    assert triton_launch.table_of(120) is triton_launch.table_of(80)


def test_wide_offsets_by_size():
    """Beyond 2**31 numbers in an example, offsets have 64 bits."""

    def is_wide(length):
        problem = triton_launch.Problem(
            batch_size=4,
            length=length,
            num_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            value_dim=64,
            itemsize=2,
            left=63,
            right=0,
            block_size=0,
            is_causal=True,
            exclude_local=None,
            scale=1.0,
            attn_logits_soft_cap=None,
            order_shape=None,
            has_sinks=False,
        )
        return triton_launch.forward(problem).constants["WIDE"]

    assert not is_wide(2**19 - 1)
    assert is_wide(2**19)
