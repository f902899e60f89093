"""When a layer draws a new permutation, and when it must not."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from keras_sa import backend
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens


def make(**changes):
    arguments = {"num_heads": 2, "key_dim": 4, "window_size": 4, "seed": 5}
    return keras_sa.StochasticAttention(**{**arguments, **changes})


def differ(a, b):
    return np.abs(to_numpy(a) - to_numpy(b)).max() > 1e-4


@pytest.mark.parametrize(
    ("resample", "new_in_training", "new_in_inference"),
    [
        ("training", True, False),
        ("always", True, True),
        ("never", False, False),
    ],
)
def test_resample(resample, new_in_training, new_in_inference):
    layer, x = make(resample=resample), tokens()
    first, second = (layer(x, training=True) for _ in range(2))
    assert differ(first, second) == new_in_training
    first, second = (layer(x, training=False) for _ in range(2))
    assert differ(first, second) == new_in_inference


def test_inference_order_comes_from_the_seed():
    x = tokens()
    layer, same, other = make(), make(), make(seed=6)
    for each in (layer, same, other):
        each.build(x.shape)
        each.set_weights(layer.get_weights())
    layer(x, training=True)  # moves the generator, not the inference order
    np.testing.assert_array_equal(to_numpy(layer(x)), to_numpy(same(x)))
    assert differ(layer(x), other(x))


def test_set_random_seed_governs_seeds_and_layers_differ():
    def seeds():
        keras.utils.set_random_seed(0)
        return [make(seed=None).seed for _ in range(3)]

    assert seeds() == seeds()
    assert len(set(seeds())) == 3


@pytest.mark.parametrize("seed", [0, -1, -(2**31), 2**31, 2**32 - 1])
def test_every_32_bit_seed_works(seed):
    layer = make(seed=seed, dropout=0.1)
    assert np.isfinite(to_numpy(layer(tokens(), training=True))).all()
    assert layer.get_config()["seed"] == seed


def patterns_of_steps(layer, steps):
    """One number per training step of `fit` for the pairs that were visible.

    What happens in a compiled step shows in its loss, so the model's output
    is a code of the visible pairs, and the learning rate is 0.
    """

    class Scores(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def build(self, shape):
            self.attention.build(shape)

        def call(self, x, training=None):
            _, scores = self.attention(
                x, return_attention_scores=True, training=training
            )
            return ops.cast(scores > 0, "float32")

    inputs = keras.Input((13, 10))
    visible = Scores()(inputs)
    code = np.random.default_rng(0).normal(size=(13, 13)).astype("float32")
    outputs = keras.layers.Lambda(
        lambda x: ops.sum(x[:, 0] * code, axis=(1, 2), keepdims=True)[:, :, 0],
        output_shape=(1,),
    )(visible)
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(outputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), "mae")
    history = model.fit(
        tokens(batch_size=1), np.full((1, 1), -1e4), epochs=steps, verbose=0
    )
    return history.history["loss"]


# The attention's own weights get no gradient, of which Keras warns.
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_compiled_training_draws_a_new_order_each_step():
    if keras.config.backend() == "torch":
        pytest.skip("fit on torch is eager; test_resample covers it")
    losses = patterns_of_steps(make(), steps=5)
    assert len(set(losses)) == 5
    assert len(set(patterns_of_steps(make(resample="never"), steps=3))) == 1


def test_compiled_function_draws_a_new_order_each_call():
    """The state goes in and comes out: nothing is frozen while tracing."""
    layer, x = make(), ops.convert_to_tensor(tokens())
    layer.build(x.shape)
    trainable = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]
    assert len(others) == 1  # the state of the seed generator

    def step(x, *others):
        return layer.stateless_call(trainable, list(others), x, training=True)

    compiled = backend.compile(step)
    first, after_first = compiled(x, *others)
    again, _ = compiled(x, *others)
    second, _ = compiled(x, *after_first)
    np.testing.assert_array_equal(to_numpy(first), to_numpy(again))
    assert differ(first, second)
    eager, _ = step(x, *others)
    np.testing.assert_allclose(to_numpy(first), to_numpy(eager), atol=2e-6)


def train(remat, layer_class=keras_sa.StochasticAttention, **arguments):
    """Weights, losses and generator states after three steps."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((13, 10))

    def build():
        layer = layer_class(
            num_heads=2, key_dim=4, seed=5, dropout=0.2, **arguments
        )
        return layer, layer(inputs, inputs, use_causal_mask=True)

    if remat:
        with keras.RematScope(mode="full"):
            layer, outputs = build()
    else:
        layer, outputs = build()
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    history = model.fit(
        tokens(), tokens(seed=1), epochs=3, batch_size=2, verbose=0
    )
    states = [
        ops.convert_to_numpy(v.value) for v in layer.non_trainable_variables
    ]
    return model.get_weights(), history.history["loss"], states


@pytest.mark.parametrize(
    ("layer_class", "arguments"),
    [
        (keras_sa.SlidingWindowAttention, {"window_size": 4}),
        (keras_sa.StochasticAttention, {"window_size": 4}),
        (
            keras_sa.StochasticAttention,
            {"window_size": 4, "neighborhood": "block", "permute": "head"},
        ),
        (keras_sa.SmallWorldAttention, {"window_size": 4}),
        (keras_sa.SmallWorldAttention, {"window_size": 4, "merge": "softmax"}),
        (keras_sa.MixtureOfBlockAttention, {"block_size": 4, "top_k": 2}),
    ],
)
def test_rematerialisation_changes_no_gradient(layer_class, arguments):
    weights, losses, states = train(False, layer_class, **arguments)
    again_weights, again_losses, again_states = train(
        True, layer_class, **arguments
    )
    np.testing.assert_allclose(losses, again_losses, rtol=1e-6)
    for expected, received in zip(weights, again_weights):
        np.testing.assert_allclose(received, expected, atol=1e-6)
    for expected, received in zip(states, again_states):
        np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize("with_value", [False, True])
def test_rematerialisation_keeps_the_mask(with_value):
    ids = np.array([[3, 4, 5, 6, 7, 8, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0]])

    def outputs(scope):
        keras.utils.set_random_seed(1)
        embedded = keras.layers.Embedding(11, 10, mask_zero=True)(ids)
        with scope:
            layer = make()
        return layer(embedded, embedded if with_value else None)

    plain = outputs(contextlib.nullcontext())
    again = outputs(keras.RematScope(mode="full"))
    np.testing.assert_allclose(to_numpy(again), to_numpy(plain), atol=1e-6)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(again._keras_mask), ids != 0
    )


def test_torch_refuses_to_draw_while_it_recomputes():
    if keras.config.backend() != "torch":
        pytest.skip("on JAX the tracer would leak, which JAX reports itself")
    layer, x = make(), ops.convert_to_tensor(tokens())
    layer.build(x.shape)

    def loss(x):
        block = keras.remat(lambda x: layer(x, training=True))
        return ops.sum(block(x))

    with pytest.raises(RuntimeError, match="RematScope"):
        backend.value_and_gradients(loss)(x)
    still = make(resample="never")
    still.build(x.shape)

    def loss_of_fixed_order(x):
        return ops.sum(keras.remat(lambda x: still(x, training=True))(x))

    _, (gradient,) = backend.value_and_gradients(loss_of_fixed_order)(x)
    assert np.isfinite(to_numpy(gradient)).all()


def test_heads_get_orders_of_their_own():
    layer = make(permute="head", num_key_value_heads=2)
    _, scores = layer(tokens(), return_attention_scores=True)
    visible = to_numpy(scores) > 0
    assert (visible[:, 0] != visible[:, 1]).any()
    _, scores = make()(tokens(), return_attention_scores=True)
    visible = to_numpy(scores) > 0
    assert (visible[:, 0] == visible[:, 1]).all()
