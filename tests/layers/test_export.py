"""Exported models, with an unknown length where the backend has one."""

import keras
import numpy as np
import pytest

import keras_sa
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens

LAYERS = {
    "sliding": lambda: keras_sa.SlidingWindowAttention(2, 4, window_size=6),
    "window": lambda: keras_sa.StochasticAttention(2, 4, window_size=6),
    "block": lambda: keras_sa.StochasticAttention(
        2, 4, window_size=6, neighborhood="block", permutation_per="head"
    ),
    "softmax": lambda: keras_sa.SmallWorldAttention(
        2, 4, window_size=6, merge="softmax"
    ),
    "routed": lambda: keras_sa.MixtureOfBlockAttention(
        2, 4, block_size=4, top_k=2
    ),
}


def model_of(name):
    inputs = keras.Input((None, 10))
    outputs = LAYERS[name]()(inputs, inputs, use_causal_mask=True)
    return keras.Model(inputs, outputs)


@pytest.mark.filterwarnings("ignore")  # of the exporters
@pytest.mark.skipif(
    keras.config.backend() == "torch", reason="a SavedModel is TensorFlow's"
)
@pytest.mark.parametrize("name", ["softmax", "block", "routed"])
def test_saved_model(name, tmp_path):
    import tensorflow as tf

    if (name, keras.config.backend()) == ("routed", "jax"):
        pytest.skip("`jax.numpy.searchsorted` 0.10 needs a known size")
    model = model_of(name)
    model.export(tmp_path / "model", format="tf_saved_model", verbose=False)
    exported = tf.saved_model.load(tmp_path / "model")
    for length in (13, 5, 24):
        x = tokens(length=length)
        np.testing.assert_allclose(
            exported.serve(x).numpy(), to_numpy(model(x)), atol=2e-6
        )


@pytest.mark.filterwarnings("ignore")  # of the exporters
@pytest.mark.skipif(
    keras.config.backend() != "torch", reason="torch.export is torch's"
)
@pytest.mark.parametrize("name", LAYERS)
def test_torch_export(name):
    import torch

    model = model_of(name)
    x = torch.from_numpy(tokens())
    exported = torch.export.export(model, (x,), strict=False).module()
    np.testing.assert_allclose(
        to_numpy(exported(x)), to_numpy(model(x)), atol=2e-6
    )
