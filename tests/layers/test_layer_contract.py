"""What every Keras layer must do, for each layer of the package."""

import keras
import numpy as np
import pytest
from keras.src import testing

from tests.layers.cases import COMMON
from tests.layers.cases import LAYERS
from tests.layers.cases import REPRESENTATIVE
from tests.layers.cases import make
from tests.layers.cases import run
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens


# Keras' own test trains from a generator, of which Keras then warns.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("name", LAYERS)
def test_keras_layer_contract(name):
    class Contract(testing.TestCase):
        def runTest(self):
            layer_class, arguments = LAYERS[name]
            self.run_layer_test(
                layer_class,
                {**COMMON, **arguments},
                input_shape=(2, 13, 10),
                expected_output_shape=(2, 13, 10),
                supports_masking=True,
            )

    Contract().runTest()


@pytest.mark.parametrize("name", LAYERS)
def test_config_is_complete(name):
    layer = make(
        name,
        output_shape=(3, 2),
        kernel_initializer="he_normal",
        bias_initializer="ones",
        kernel_regularizer="l2",
        bias_regularizer="l1",
        activity_regularizer="l2",
        kernel_constraint="non_neg",
        bias_constraint="non_neg",
    )
    config = layer.get_config()
    revived = type(layer).from_config(config)
    assert revived.get_config() == config
    for argument, value in LAYERS[name][1].items():
        received = config[argument]
        if argument == "pattern":
            received = keras.saving.deserialize_keras_object(received)
        assert received == value
    assert config["seed"] == 3
    assert config["output_shape"] == (3, 2)


@pytest.mark.parametrize("name", LAYERS)
def test_symbolic_shapes_equal_real_ones(name):
    layer = make(name, output_shape=(3, 2))
    x = tokens()
    symbolic = keras.Input(batch_shape=x.shape)
    with_scores = name != "small_world_channel"  # it has none
    if not with_scores:
        assert layer(symbolic).shape == run(layer, x).shape == (2, 13, 3, 2)
        return
    expected = layer(symbolic, symbolic, return_attention_scores=True)
    received = run(layer, x, return_attention_scores=True)
    assert [y.shape for y in expected] == [tuple(y.shape) for y in received]
    assert expected[1].shape == (2, 4, 13, 13)
    assert layer.compute_output_shape((None, None, 10)) == (None, None, 3, 2)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("causal", [False, True])
def test_scores_belong_to_the_output(name, causal):
    if name in ("small_world_channel", "stochastic_always_dropout"):
        pytest.skip("gates per channel have no scores; a new order each call")
    layer = make(name)
    x = tokens()
    mask = np.arange(13) < np.array([[13], [8]])
    keywords = {"query_mask": mask, "use_causal_mask": causal}
    output, scores = run(layer, x, return_attention_scores=True, **keywords)
    np.testing.assert_allclose(
        to_numpy(output), to_numpy(run(layer, x, **keywords)), atol=2e-6
    )
    scores = to_numpy(scores)
    assert (scores[1, :, :, 8:] == 0).all() and (scores[1, :, 8:] == 0).all()
    if layer.term_gate_dense is None or len(layer.pattern.terms) == 2:
        np.testing.assert_allclose(scores[0].sum(-1), 1, atol=1e-5)
    hidden = scores[0] == 0
    if causal:
        assert hidden[
            :, np.triu_indices(13, 1)[0], np.triu_indices(13, 1)[1]
        ].all()
    else:
        assert hidden.any()


@pytest.mark.parametrize(
    "policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"]
)
@pytest.mark.parametrize("name", LAYERS)
def test_precision_policies(name, policy):
    layer = make(name, dtype=policy)
    output = run(layer, tokens(), use_causal_mask=True)
    expected = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(output.dtype) == expected
    assert np.isfinite(to_numpy(output)).all()
    precise = make(name, dtype="float32")
    precise.build((2, 13, 10))
    precise.set_weights([w.astype("float32") for w in layer.get_weights()])
    if name != "stochastic_always_dropout":  # a new order each call
        np.testing.assert_allclose(
            to_numpy(output),
            to_numpy(run(precise, tokens(), use_causal_mask=True)),
            atol=0.1,
        )


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_trains_in_a_model_with_unknown_batch_and_length(name):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, 10))
    layer = make(name)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = tokens(batch_size=4)
    history = model.fit(x, 0.1 * x, epochs=8, batch_size=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert run(layer, x[:, :7]).shape == (4, 7, 10)


@pytest.mark.parametrize("name", LAYERS)
def test_no_extra_parameters(name):
    layer = make(name)
    layer.build((2, 13, 10))
    reference = keras.layers.MultiHeadAttention(
        4,
        6,
        value_dim=layer.value_dim,
        use_bias=layer.use_bias,
        use_gate=layer.use_gate,
    )
    reference.build((2, 13, 10), (2, 13, 10))
    names = [w.path.split("/")[-2:] for w in layer.trainable_weights]
    expected = [w.path.split("/")[-2:] for w in reference.trainable_weights]
    assert names[: len(expected)] == expected
    gates = names[len(expected) :]
    has_gates = "gates" in layer.pattern.needs()
    assert gates == (
        [["term_gate", "kernel"], ["term_gate", "bias"]] if has_gates else []
    )
