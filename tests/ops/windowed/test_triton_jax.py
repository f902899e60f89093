"""Programs of JAX for a GPU, lowered without one."""

import importlib.util
import re
import types

import keras
import pytest
from keras import ops

import keras_sa
from keras_sa.ops.neighbors import api as neighbors_api

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="programs of JAX"
)
LENGTH, WINDOW = 512, 128


@pytest.fixture(params=[80, 90])
def gpu(request, monkeypatch):
    """JAX believes in a GPU of this compute capability."""
    from keras_sa import triton as triton_loading
    from keras_sa.backend import jax as jax_devices

    if not triton_loading.is_installed():
        pytest.skip("Triton is not installed")
    triton_loading.load()
    pytest.importorskip("jax_triton", reason="jax-triton is not installed")

    monkeypatch.setattr(jax_devices, "why_no_triton_on", lambda device: None)
    monkeypatch.setattr(jax_devices, "capability", lambda tensor: request.param)


def shapes(batch=2, dtype="bfloat16", dim=64):
    import jax

    query = jax.ShapeDtypeStruct((batch, LENGTH, 8, dim), dtype)
    key = jax.ShapeDtypeStruct((batch, LENGTH, 4, dim), dtype)
    order = jax.ShapeDtypeStruct((LENGTH,), "int32")
    return query, key, key, order


def attend(*tensors, **arguments):
    arguments = {"window_size": WINDOW, "is_causal": True, **arguments}
    return keras_sa.ops.stochastic_attention(*tensors, **arguments)


def gradients(function):
    import jax

    def loss(*tensors):
        return ops.sum(ops.cast(function(*tensors), "float32"))

    return jax.grad(loss, argnums=(0, 1, 2))


def custom_calls(function, *avals):
    """How often a lowered program calls what, by name; for CUDA."""
    import jax

    lowered = jax.jit(function).trace(*avals)
    text = lowered.lower(lowering_platforms=("cuda",)).as_text()
    names = re.findall(r"custom_call @([^\s(]+)\(", text)
    # A matrix product outside a kernel would be the portable path.
    assert "dot_general" not in text
    return {name: names.count(name) for name in set(names)}


def test_forward_is_one_kernel(gpu):
    calls = custom_calls(attend, *shapes())
    assert calls == {"triton_kernel_call": 1}


def test_backward_is_two_more(gpu):
    calls = custom_calls(gradients(attend), *shapes())
    assert calls == {"triton_kernel_call": 3}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_everything_lowers(gpu, dtype):
    def function(*tensors):
        return attend(
            *tensors,
            neighborhood="block",
            exclude_local=16,
            attn_logits_soft_cap=30.0,
            sinks=ops.zeros(8),
        )

    calls = custom_calls(gradients(function), *shapes(dtype=dtype))
    assert calls == {"triton_kernel_call": 3}


def test_it_lowers_under_shard_map(gpu):
    import jax
    from jax.sharding import PartitionSpec

    mesh = jax.make_mesh(
        (1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    sharded, whole = PartitionSpec("batch"), PartitionSpec()
    mapped = jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(sharded, sharded, sharded, whole),
        out_specs=sharded,
    )
    calls = custom_calls(gradients(mapped), *shapes())
    assert calls["triton_kernel_call"] == 3


def test_a_step_of_decoding_lowers(gpu):
    import jax

    _, key, value, _ = shapes()
    query = jax.ShapeDtypeStruct((2, 1, 8, 64), "bfloat16")
    rows = jax.ShapeDtypeStruct((1, 100), "int32")

    def step(*tensors):
        return neighbors_api.neighbor_attention(*tensors, scale=0.1)

    assert custom_calls(step, query, key, value, rows) == {
        "triton_kernel_call": 1
    }


def test_blocks_run_on_cudnn(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    from keras_sa.backend import jax as jax_devices

    monkeypatch.setattr(jax_devices, "device_kind", lambda tensor: "gpu")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(
        cudnn, "check_compute_capability", lambda capability: True
    )

    def function(*tensors):
        return attend(*tensors, neighborhood="block")

    forward = custom_calls(function, *shapes())
    both = custom_calls(gradients(function), *shapes())
    assert set(forward) == {"__cudnn$fmhaSoftmax"}
    assert set(both) == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}


def test_unknown_sizes_are_left_to_the_portable_path(gpu):
    import jax

    (length,) = jax.export.symbolic_shape("n")
    query = jax.ShapeDtypeStruct((2, length, 8, 64), "float32")
    key = jax.ShapeDtypeStruct((2, length, 4, 64), "float32")

    def function(query, key, value, **arguments):
        return keras_sa.ops.sliding_window_attention(
            query, key, value, window_size=8, **arguments
        )

    def named(*tensors):
        return function(*tensors, implementation="triton")

    with pytest.raises(ValueError, match="(?s)sizes.*Received"):
        jax.eval_shape(named, query, key, key)


def test_without_a_gpu_it_says_so():
    x = ops.zeros((1, 8, 2, 16))
    with pytest.raises(ValueError, match="(?s)NVIDIA GPU.*cpu.*Received"):
        keras_sa.ops.sliding_window_attention(
            x, x, x, window_size=4, implementation="triton"
        )


class FakeGpu:
    platform, device_kind, compute_capability = "gpu", "NVIDIA H200", "9.0"


def test_a_missing_package_is_named(monkeypatch):
    from keras_sa.backend import jax as jax_devices

    monkeypatch.setattr(jax_devices, "_device", lambda tensor: FakeGpu)
    assert jax_devices.capability(None) == 90
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "jax_triton" else find_spec(name),
    )
    assert "pip install 'keras_sa[jax-gpu]'" in jax_devices.why_no_triton_on(
        FakeGpu
    )


def test_an_old_gpu_is_refused(monkeypatch):
    from keras_sa.backend import jax as jax_devices

    monkeypatch.setattr(FakeGpu, "compute_capability", "7.5")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert "7.5" in jax_devices.why_no_triton_on(FakeGpu)


@pytest.mark.parametrize(
    "dtype, by_default", [("float32", False), ("bfloat16", True)]
)
def test_blocks_in_float32_are_not_for_cudnn(dtype, by_default, monkeypatch):
    from keras_sa.backend import jax as jax_devices
    from keras_sa.ops.windowed import native_block

    arguments = types.SimpleNamespace(query=ops.zeros((1, 4, 1, 8), dtype))
    assert not native_block.by_default(arguments)  # on a CPU
    monkeypatch.setattr(jax_devices, "device_kind", lambda tensor: "gpu")
    assert native_block.by_default(arguments) == by_default
