"""Keras masks, padding and attention masks of the layers."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from tests.layers.cases import LAYERS
from tests.layers.cases import make
from tests.layers.cases import run
from tests.layers.cases import stateless
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens

DETERMINISTIC = [name for name in LAYERS if name != "stochastic_always_dropout"]


@pytest.mark.parametrize("name", LAYERS)
def test_keras_mask_goes_in_and_out_without_a_warning(name):
    embed = keras.layers.Embedding(11, 10, mask_zero=True)
    ids = np.array([[3, 4, 5, 6, 7, 0, 0], [1, 2, 3, 0, 0, 0, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = make(name)(embed(ids))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(output._keras_mask), ids != 0
    )


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_keras_mask_means_query_mask(name):
    embed = keras.layers.Embedding(11, 10, mask_zero=True)
    ids = np.array([[3, 4, 5, 6, 7, 0, 0], [1, 2, 3, 0, 0, 0, 0]])
    layer = make(name)
    expected = run(layer, to_numpy(embed(ids)), query_mask=ids != 0)
    x = embed(ids)
    for output in (layer(x), layer(x, x), layer(x, x, x)):
        np.testing.assert_allclose(
            to_numpy(output), to_numpy(expected), atol=1e-6
        )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_padding_changes_nothing(name, causal, side):
    layer = make(name)
    x = tokens(batch_size=1, length=9)
    filler = np.full((1, 4, 10), 1e30, "float32")
    parts, mask = [x, filler], [1] * 9 + [0] * 4
    if side == "left":
        parts, mask = parts[::-1], mask[::-1]
    mask = np.array([mask])  # integers, as in KerasHub
    padded = np.concatenate(parts, axis=1)
    padded = run(layer, padded, query_mask=mask, use_causal_mask=causal)
    alone = run(layer, x, use_causal_mask=causal)
    np.testing.assert_allclose(
        to_numpy(padded)[mask == 1], to_numpy(alone)[0], atol=2e-6
    )


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_attention_mask_forms_mean_the_same(name):
    layer = make(name)
    x = tokens()
    padding = np.arange(13) < np.array([[13], [8]])
    pairs = padding[:, None, :] & padding[:, :, None]
    expected = to_numpy(run(layer, x, query_mask=padding))
    same = {
        "integers": run(layer, x, query_mask=padding * 1),
        "value_mask": run(layer, x, value_mask=padding),
        "key_mask": run(layer, x, key_mask=padding),
    }
    for form, received in same.items():
        np.testing.assert_allclose(
            to_numpy(received), expected, atol=2e-6, err_msg=form
        )
    expected = to_numpy(run(layer, x, attention_mask=pairs))
    for form in (pairs[:, None], pairs.astype("int32"), pairs[:, None] * 1):
        received = to_numpy(run(layer, x, attention_mask=form))
        np.testing.assert_array_equal(received, expected)
    one_for_all = to_numpy(run(layer, x, attention_mask=pairs[1:]))
    np.testing.assert_array_equal(one_for_all[1], expected[1])


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_attention_mask_of_pairs_equals_dense_scores(name):
    if name == "small_world_channel":
        pytest.skip("gates per channel have no scores")
    layer = make(name)
    x = tokens()
    mask = np.random.default_rng(1).random((2, 13, 13)) < 0.6
    output = run(layer, x, attention_mask=mask, use_causal_mask=True)
    dense, scores = run(
        layer,
        x,
        attention_mask=mask,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    np.testing.assert_allclose(to_numpy(output), to_numpy(dense), atol=2e-6)
    assert (
        to_numpy(scores)[~np.broadcast_to(mask[:, None], scores.shape)] == 0
    ).all()


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_fully_padded_example(name, policy):
    layer = make(name, dtype=policy)
    x = ops.convert_to_tensor(tokens())
    layer.build(x.shape)
    mask = np.array([[True] * 13, [False] * 13])
    # Only the bias of the output projection is left of such an example.
    nothing = to_numpy(
        layer.output_dense(ops.zeros((1, 13, layer.num_heads, layer.value_dim)))
    )
    output = to_numpy(run(layer, x, query_mask=mask))
    np.testing.assert_array_equal(output[1:], nothing)

    def loss(x):
        y, _ = stateless(
            layer, x, query_mask=mask, training=True, use_causal_mask=True
        )
        return ops.sum(ops.square(ops.cast(y, "float32")))

    differentiate = backend.compile(backend.value_and_gradients(loss))
    value, (gradient,) = differentiate(x)
    assert np.isfinite(to_numpy(value))
    gradient = to_numpy(gradient)
    assert np.isfinite(gradient).all()
    assert (gradient[1] == 0).all() and (gradient[0] != 0).any()


CAUSAL_CALLS = {
    "plain": {},
    "padding": {"query_mask": np.arange(13) < np.array([[13], [11]])},
    "attention_mask": {
        "attention_mask": np.random.default_rng(1).random((2, 13, 13)) < 0.8
    },
    "dropout": {"training": True},
    "scores": {"return_attention_scores": True},
}


@pytest.mark.parametrize("way", CAUSAL_CALLS)
@pytest.mark.parametrize("name", LAYERS)
def test_causal_on_every_path(name, way):
    if (name, way) == ("small_world_channel", "scores"):
        pytest.skip("gates per channel have no scores")
    changes = {"dropout": 0.3} if way == "dropout" else {}
    changes["resample"] = "never"

    def outputs(x):
        keras.utils.set_random_seed(0)  # the same weights and the same dropout
        layer = make(name, **changes)
        output = run(layer, x, use_causal_mask=True, **CAUSAL_CALLS[way])
        return to_numpy(output[0] if isinstance(output, tuple) else output)

    x, changed = tokens(), tokens()
    changed[:, 7:] += 5.0
    before, after = outputs(x), outputs(changed)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any()
