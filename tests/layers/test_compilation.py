"""Compiled by the backend's own compiler."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from keras_sa import backend as kb
from tests.layers.cases import LAYERS
from tests.layers.cases import make
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens


# Keras caches its type promotion, of which Dynamo warns.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.skipif(
    keras.config.backend() != "torch", reason="torch.compile is torch's"
)
@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("sliding_window_attention", {"window_size": 8}),
        ("stochastic_attention", {"window_size": 8}),
        ("stochastic_attention", {"window_size": 8, "neighborhood": "block"}),
        (
            "stochastic_attention",
            {
                "window_size": 8,
                "neighborhood": "block",
                "implementation": "portable",
            },
        ),
        ("block_routed_attention", {"block_size": 8, "top_k": 3}),
    ],
)
def test_no_graph_break_on_torch(op, arguments):
    import torch

    random = np.random.default_rng(0)
    tensors = [
        ops.convert_to_tensor(random.normal(size=(2, 40, 4, 8)).astype("f"))
        for _ in range(3)
    ]
    if op == "stochastic_attention":
        tensors.append(keras_sa.ops.sample_permutation(40, 3))

    def attend(*tensors):
        return getattr(keras_sa.ops, op)(*tensors, is_causal=True, **arguments)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    np.testing.assert_allclose(
        to_numpy(compiled(*tensors)), to_numpy(attend(*tensors)), atol=2e-6
    )


@pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="jit_compile is TensorFlow's"
)
@pytest.mark.parametrize("name", LAYERS)
def test_xla_on_tensorflow(name):
    import tensorflow as tf

    is_random = "stochastic" in name or "small_world" in name
    layer = make(name, **({"resample": "never"} if is_random else {}))
    x = ops.convert_to_tensor(tokens())
    layer.build(x.shape)
    compiled = tf.function(layer, jit_compile=True)
    np.testing.assert_allclose(
        to_numpy(compiled(x, use_causal_mask=True)),
        to_numpy(layer(x, use_causal_mask=True)),
        atol=2e-6,
    )


@pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="jit_compile is TensorFlow's"
)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_under_xla_on_tensorflow(name):
    """As `fit` has them: Keras compiles by XLA where it can."""
    import tensorflow as tf

    is_random = "stochastic" in name or "small_world" in name
    layer = make(name, **({"resample": "never"} if is_random else {}))
    x = ops.convert_to_tensor(tokens())
    layer.build(x.shape)

    def loss(x):
        return ops.sum(layer(x, use_causal_mask=True) ** 2)

    run = kb.value_and_gradients(loss)
    for received, expected in zip(
        tf.nest.flatten(tf.function(run, jit_compile=True)(x)),
        tf.nest.flatten(run(x)),
    ):
        np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-4)
