"""Saving, loading, LoRA and int8."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests import testing
from tests.layers.cases import LAYERS
from tests.layers.cases import REPRESENTATIVE
from tests.layers.cases import make
from tests.layers.cases import to_numpy
from tests.layers.cases import tokens

DETERMINISTIC = [name for name in LAYERS if name != "stochastic_always_dropout"]


def model_of(name):
    inputs = keras.Input((13, 10))
    outputs = make(name)(inputs, inputs, use_causal_mask=True)
    return keras.Model(inputs, keras.layers.Dense(3)(outputs))


def predict(model):
    run = testing.compiled_on_jax(lambda x: model(x))
    return to_numpy(run(keras.ops.convert_to_tensor(tokens())))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_loads_again(name, tmp_path):
    model = model_of(name)
    expected = predict(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded), expected, atol=1e-6)


LOAD = """
import sys
import numpy as np
import keras
import keras_sa

for path in sys.argv[1:]:
    model = keras.models.load_model(path + ".keras")
    expected = np.load(path + ".npy")
    tokens = np.load(path + "_tokens.npy")
    received = model.predict(tokens, verbose=0)
    np.testing.assert_allclose(received, expected, atol=1e-6)
    print("loaded", path)
"""


def test_loads_in_a_fresh_process(tmp_path):
    """With nothing but `keras` and `keras_sa` imported; int8 as well."""
    paths = []
    for name in REPRESENTATIVE:
        model = model_of(name)
        for quantized in (False, True):
            path = str(tmp_path / f"{name}_{quantized}")
            if quantized:
                testing.quantize(model)
            model.save(path + ".keras")
            np.save(path + ".npy", predict(model))
            np.save(path + "_tokens.npy", tokens())
            paths.append(path)
    finished = subprocess.run(
        [sys.executable, "-c", LOAD, *paths],
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.count("loaded") == len(paths)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_int8_round_trip(name, tmp_path):
    model = model_of(name)
    precise = predict(model)
    testing.quantize(model)
    attention = model.layers[1]
    for projection in attention._projections():
        assert projection.dtype_policy.quantization_mode == "int8"
    quantized = predict(model)
    assert 0 < np.abs(quantized - precise).max() < 0.2
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded), quantized, atol=1e-6)
    attention = loaded.layers[1]
    for projection in attention._projections():
        assert projection.dtype_policy.quantization_mode == "int8"
    # And once more, from the loaded model.
    loaded.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    np.testing.assert_allclose(predict(again), quantized, atol=1e-6)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_lora_trains_and_round_trips(name, tmp_path):
    model = model_of(name)
    before = predict(model)
    attention = model.layers[1]
    frozen = keras.ops.convert_to_numpy(attention.query_dense._kernel)
    attention.query_dense.enable_lora(2)
    attention.value_dense.enable_lora(2)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = tokens()
    model.fit(x, x[..., :3], epochs=2, verbose=0)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(attention.query_dense._kernel), frozen
    )
    after = predict(model)
    assert np.abs(after - before).max() > 1e-4
    model.save_weights(tmp_path / "lora.weights.h5")
    plain = model_of(name)
    plain.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(predict(plain), after, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_config_is_json(name):
    config = make(name).get_config()
    revived = json.loads(json.dumps(config))
    layer = LAYERS[name][0].from_config(revived)
    assert json.dumps(layer.get_config()) == json.dumps(config)


def test_seed_drawn_at_construction_is_saved(tmp_path):
    """A model without explicit seeds keeps its permutations."""
    inputs = keras.Input((13, 10))
    outputs = make("stochastic_window", seed=None)(inputs)
    outputs = make("stochastic_window", seed=None)(outputs)
    model = keras.Model(inputs, outputs)
    expected = predict(model)
    model.save(tmp_path / "model.keras")
    keras.utils.set_random_seed(99)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded), expected, atol=1e-6)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_allclose(predict(copy), expected, atol=1e-6)
