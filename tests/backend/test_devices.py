"""The implementation goes by the device of the tensors, not by the host's."""

import types

import keras
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.windowed import api

only_on = {
    name: pytest.mark.skipif(
        keras.config.backend() != name, reason=f"devices of {name}"
    )
    for name in ("jax", "torch", "tensorflow")
}


def default_implementation(x):
    """What `implementation=None` takes for a window of 7 of float32."""
    arguments = api.arguments_of(
        check_inputs(x, x, x), None, reach=(6, 0), window_size=7
    )
    table = api.IMPLEMENTATIONS[keras.config.backend()]
    for name, module in table.items():
        by_default = getattr(module, "by_default", lambda arguments: True)
        if module.why_not(arguments) is None and by_default(arguments):
            return name


def test_tensors_of_this_process():
    assert backend.device_kind(ops.zeros(3)) in ("cpu", "gpu")


@only_on["jax"]
def test_an_array_of_jax_on_a_host_with_a_gpu(monkeypatch):
    import jax

    from keras_sa.backend import jax as ours

    gpu = types.SimpleNamespace(platform="gpu", device_kind="a GPU")
    monkeypatch.setattr(jax, "devices", lambda *kind: [gpu])
    x = jax.device_put(ops.zeros((1, 8, 2, 4)), jax.local_devices()[0])
    assert ours.device_kind(x) == "cpu"
    kinds = []
    jax.jit(lambda x: kinds.append(ours.device_kind(x)) or x)(x)
    assert kinds == ["gpu"]  # a tracer has no device: the default one
    monkeypatch.setattr(jax, "devices", lambda kind=None: [kind or gpu])
    with jax.default_device(jax.local_devices()[0]):
        jax.jit(lambda x: kinds.append(ours.device_kind(x)) or x + 1)(x)
    assert kinds[-1] == "cpu"


@only_on["jax"]
def test_a_cpu_array_of_jax_is_not_for_the_gpu(monkeypatch):
    import jax

    gpu = types.SimpleNamespace(
        platform="gpu", device_kind="a GPU", compute_capability="9.0"
    )
    monkeypatch.setattr(jax, "devices", lambda *kind: [gpu])
    assert default_implementation(ops.zeros((1, 8, 2, 4))) == "portable"


@only_on["torch"]
def test_a_tensor_of_torch_says_where_it_is():
    import torch

    from keras_sa.backend import torch as ours

    fake = types.SimpleNamespace(device=torch.device("cuda", 0))
    assert ours.device_kind(fake) == "gpu"
    assert ours.device_kind(torch.zeros(1, device="meta")) == "meta"
    x = torch.zeros((1, 8, 2, 4), device="cpu")
    assert ours.device_kind(x) == "cpu"
    assert default_implementation(x) == "sdpa"


@only_on["tensorflow"]
def test_a_cpu_tensor_of_tensorflow_on_a_host_with_a_gpu(monkeypatch):
    import tensorflow as tf

    from keras_sa.backend import tensorflow as ours

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    with tf.device("CPU"):
        x = tf.zeros((1, 8, 2, 4))
    assert ours.device_kind(x) == "cpu"
    assert default_implementation(x) == "portable"
    name = "/job:localhost/replica:0/task:0/device:GPU:0"
    assert ours.device_kind(types.SimpleNamespace(device=name)) == "gpu"
    kinds = []

    @tf.function
    def run(x):
        kinds.append(ours.device_kind(x))
        return x

    run.get_concrete_function(tf.TensorSpec((1, 8, 2, 4)))
    assert kinds == ["gpu"]  # a graph knows no device: the default one
