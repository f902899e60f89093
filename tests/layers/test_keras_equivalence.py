"""Equality with the attention layers of Keras on shared weights."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from tests.layers.cases import LAYERS
from tests.layers.cases import make
from tests.layers.cases import run
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens


def pair(reference, layer, **call):
    """Outputs of both layers with the weights of the first."""
    x = tokens()
    reference.build(x.shape, x.shape)
    layer.build(x.shape, x.shape)
    # Also biases, which start at 0.
    random = np.random.default_rng(0)
    weights = [
        random.normal(size=weight.shape, scale=0.3).astype("float32")
        for weight in reference.trainable_weights
    ]
    reference.set_weights(weights)
    layer.set_weights(weights)
    expected = reference(x, x, **call)
    return to_numpy(expected), to_numpy(run(layer, x, **call))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("window_size", [1, 2, 5, 13, 20])
def test_causal_sliding_window_of_keras(window_size, masked):
    call = {"use_causal_mask": True}
    if masked:
        mask = np.arange(13) < np.array([[13], [8]])
        call |= {"query_mask": mask, "value_mask": mask}
    expected, received = pair(
        keras.layers.MultiHeadAttention(4, 6, sliding_window=window_size),
        keras_sa.SlidingWindowAttention(4, 6, window_size=window_size),
        **call,
    )
    if masked:  # Keras gives padding the mean of all values, here it is 0
        expected, received = expected[mask], received[mask]
    np.testing.assert_allclose(received, expected, atol=2e-6)


@pytest.mark.parametrize("reach", [1, 2, 5, 13])
def test_symmetric_sliding_window_of_keras(reach):
    expected, received = pair(
        keras.layers.MultiHeadAttention(4, 6, sliding_window=reach),
        keras_sa.SlidingWindowAttention(4, 6, window_size=2 * reach - 1),
    )
    np.testing.assert_allclose(received, expected, atol=2e-6)


@pytest.mark.parametrize("use_bias", [False, True])
def test_gate_of_keras(use_bias):
    """`use_gate` of Keras 3.15, with its weights in their order."""
    options = {"use_gate": True, "use_bias": use_bias}
    # On JAX, Keras 3.15 fails with a value_dim of its own.
    value_dim = 6 if keras.config.backend() == "jax" else 5
    expected, received = pair(
        keras.layers.MultiHeadAttention(4, 6, value_dim=value_dim, **options),
        keras_sa.SlidingWindowAttention(
            4, 6, 25, value_dim=value_dim, **options
        ),
        use_causal_mask=True,
    )
    np.testing.assert_allclose(received, expected, atol=2e-6)
    expected, received = pair(
        keras.layers.GroupQueryAttention(6, 4, 2, **options),
        keras_sa.StochasticAttention(
            4, 6, 25, num_key_value_heads=2, **options
        ),
    )
    np.testing.assert_allclose(received, expected, atol=2e-6)


@pytest.mark.parametrize(
    "shape", [(13, 13), (2, 13, 13), (2, 1, 13), (1, 13, 13)]
)
def test_attention_masks_of_keras(shape):
    mask = np.random.default_rng(1).random(shape) < 0.7
    mask[..., 0] = True
    expected, received = pair(
        keras.layers.MultiHeadAttention(4, 6),
        keras_sa.StochasticAttention(4, 6, window_size=25),
        attention_mask=mask,
    )
    np.testing.assert_allclose(received, expected, atol=2e-6)


def test_a_square_mask_is_of_pairs_also_where_the_batch_is_as_large():
    x, mask = tokens(batch_size=13), np.tri(13, dtype=bool)
    layer = keras_sa.SlidingWindowAttention(4, 6, window_size=5)
    np.testing.assert_allclose(
        to_numpy(run(layer, x, attention_mask=mask))[:, :2],
        to_numpy(run(layer, x, attention_mask=mask[None]))[:, :2],
        atol=1e-6,
    )
    np.testing.assert_allclose(
        to_numpy(run(layer, x, attention_mask=mask))[0, 0],
        to_numpy(run(layer, x[:, :1]))[0, 0],
        atol=1e-6,
    )


@pytest.mark.parametrize("shape", [(0, 13, 10), (2, 0, 10), (0, 0, 10)])
@pytest.mark.parametrize("name", LAYERS)
def test_empty_inputs_give_empty_outputs_as_in_keras(name, shape):
    reference = keras.layers.MultiHeadAttention(4, 6)
    x = ops.zeros(shape)
    layer = make(name)
    layer.build((2, 13, 10))
    for options in ({}, {"use_causal_mask": True}):
        expected = reference(x, x, **options).shape
        # TensorFlow's einsum makes a batch of one of no batch and no tokens.
        assert expected == shape or shape[:2] == (0, 0)
        assert layer(x, **options).shape == expected


def test_sliding_window_of_grouped_query_attention():
    expected, received = pair(
        keras.layers.GroupQueryAttention(6, 4, 2, sliding_window=5),
        keras_sa.SlidingWindowAttention(
            4, 6, window_size=5, num_key_value_heads=2
        ),
        use_causal_mask=True,
    )
    np.testing.assert_allclose(received, expected, atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras_sa.SlidingWindowAttention(4, 6, window_size=25),
        lambda: keras_sa.StochasticAttention(4, 6, window_size=25),
        lambda: keras_sa.StochasticAttention(
            4, 6, window_size=13, neighborhood="block"
        ),
        lambda: keras_sa.StochasticAttention(
            4, 6, window_size=25, permutation_per="head", resample="always"
        ),
        lambda: keras_sa.SmallWorldAttention(
            4, 6, window_size=3, local_window_size=25, merge="softmax"
        ),
        lambda: keras_sa.MixtureOfBlockAttention(4, 6, block_size=5, top_k=3),
    ],
    ids=["sliding", "window", "block", "per_head", "softmax", "routed"],
)
def test_a_window_over_everything_is_full_attention(layer, causal):
    expected, received = pair(
        keras.layers.MultiHeadAttention(4, 6),
        layer(),
        use_causal_mask=causal,
    )
    np.testing.assert_allclose(received, expected, atol=2e-6)


def test_small_window_differs_from_full_attention():
    for layer in (
        keras_sa.SlidingWindowAttention(4, 6, window_size=3),
        keras_sa.StochasticAttention(4, 6, window_size=3),
        keras_sa.SmallWorldAttention(4, 6, window_size=3, merge="softmax"),
        keras_sa.MixtureOfBlockAttention(4, 6, block_size=3, top_k=2),
    ):
        expected, received = pair(
            keras.layers.MultiHeadAttention(4, 6), layer, use_causal_mask=True
        )
        assert np.abs(expected - received).max() > 1e-2, type(layer)


def test_untrained_gates_give_the_mean_of_the_paths():
    arguments = {"num_heads": 4, "key_dim": 6, "window_size": 5, "seed": 3}
    paths = (
        keras_sa.StochasticAttention(**arguments),
        keras_sa.SlidingWindowAttention(**arguments),
    )
    small_world = keras_sa.SmallWorldAttention(**arguments)
    x = tokens()
    for layer in (*paths, small_world):
        layer.build(x.shape)
    weights = paths[0].get_weights()
    paths[1].set_weights(weights)
    small_world.set_weights(weights + small_world.get_weights()[len(weights) :])
    mean = sum(to_numpy(path(x)) for path in paths) / 2
    np.testing.assert_allclose(to_numpy(small_world(x)), mean, atol=2e-6)


def test_gates_weigh_the_paths_of_each_head():
    layer = keras_sa.SmallWorldAttention(4, 6, window_size=5, seed=3)
    x = tokens()
    layer.build(x.shape)
    local = keras_sa.SlidingWindowAttention(4, 6, window_size=5)
    local.build(x.shape)
    local.set_weights(layer.get_weights()[:8])
    kernel, bias = layer.term_gate_dense.get_weights()
    bias[0], bias[1] = -40.0, 40.0  # stochastic path off, local path on
    layer.term_gate_dense.set_weights([kernel, bias])
    np.testing.assert_allclose(
        to_numpy(layer(x)), to_numpy(local(x)), atol=1e-6
    )


def test_weight_file_of_a_keras_layer_loads(tmp_path):
    class Model(keras.Model):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def call(self, x):
            return self.attention(x, x, use_causal_mask=True)

    x = tokens()
    reference = Model(keras.layers.MultiHeadAttention(4, 6, sliding_window=5))
    model = Model(keras_sa.SlidingWindowAttention(4, 6, window_size=5))
    expected = to_numpy(reference(x))
    assert np.abs(to_numpy(model(x)) - expected).max() > 1e-3
    reference.save_weights(tmp_path / "attention.weights.h5")
    model.load_weights(tmp_path / "attention.weights.h5")
    np.testing.assert_allclose(to_numpy(model(x)), expected, atol=2e-6)
