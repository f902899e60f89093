"""Saved swaps come back; without keras_sa, the model itself does."""

import json
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest

from keras_sa import hub
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

LENGTH = 12
SEED = 3
GATED = {"pattern": Stochastic(4) + SlidingWindow(4), "seed": SEED}
inputs = models.prompts([LENGTH, LENGTH - 4], LENGTH)


def gated_model():
    model = models.build("llama")
    swap = hub.swap_attention(model, **GATED, layers=[1])
    for gate in swap.gates:
        for v in gate.weights:
            v.assign(keras.random.normal(v.shape, seed=5))
    return model, swap


def test_comes_back_in_a_fresh_process(tmp_path):
    model, swap = gated_model()
    expected = models.logits(model, inputs)
    hub.save_to_preset(model, tmp_path / "preset")
    np.savez(tmp_path / "inputs.npz", **inputs)
    code = f"""
import numpy as np
import keras
import keras_sa
model = keras_sa.hub.from_preset({str(tmp_path / "preset")!r})
x = dict(np.load({str(tmp_path / "inputs.npz")!r}))
y = model({{k: keras.ops.convert_to_tensor(v) for k, v in x.items()}})
np.save({str(tmp_path / "logits.npy")!r}, keras.ops.convert_to_numpy(y))
print(keras_sa.hub.current_swap(model))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert repr(swap) in result.stdout
    received = np.load(tmp_path / "logits.npy")
    np.testing.assert_allclose(received, expected, atol=1e-5)


@pytest.mark.parametrize("saved_by", ["keras_sa", "keras_hub"])
def test_keras_hub_alone_loads_the_model_itself(tmp_path, saved_by):
    model, swap = gated_model()
    if saved_by == "keras_sa":
        hub.save_to_preset(model, tmp_path)
    else:
        model.save_to_preset(str(tmp_path))
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path))
    assert hub.current_swap(loaded) is None
    swap.restore()
    np.testing.assert_array_equal(
        models.logits(loaded, inputs), models.logits(model, inputs)
    )
    expected = [v.path for v in model.weights]
    assert [v.path for v in loaded.weights] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": Full()},
        {
            "pattern": SlidingWindow(3, dilation=2) | GlobalKeys(first=2),
            "decode": "pattern",
        },
        {"pattern": Stochastic(3, neighborhood="block"), "resample": "never"},
        {"pattern": {1: BlockRouted(3, 2)}, "layers": "global"},
    ],
)
def test_every_option_comes_back(tmp_path, options):
    model = models.build("gemma2").backbone
    options = {"seed": SEED, "layers": "all", **options}
    swap = hub.swap_attention(model, **options)
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    assert type(loaded) is type(model)
    assert repr(hub.current_swap(loaded)) == repr(swap)
    assert hub.current_swap(loaded).get_config() == swap.get_config()
    config = json.loads((tmp_path / "keras_sa.json").read_text())
    assert config["model"] == "GemmaBackbone"
    assert not (tmp_path / "keras_sa_gates.weights.h5").exists()


@pytest.mark.parametrize("name", ["llama", "llama3", "qwen3"])
def test_tied_embeddings_come_back(tmp_path, name):
    model = models.build(name, tie_word_embeddings=True)
    hub.swap_attention(model, Stochastic(4), seed=SEED)
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    np.testing.assert_array_equal(
        models.logits(loaded, inputs), models.logits(model, inputs)
    )


def test_saving_again_without_gates_removes_the_old_ones(tmp_path):
    model, _ = gated_model()
    hub.save_to_preset(model, tmp_path)
    hub.swap_attention(model, Stochastic(4))
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    assert hub.current_swap(loaded).gates == []


def test_saving_leaves_the_model_swapped():
    """And its gates trainable variables."""
    model, swap = gated_model()
    expected = models.logits(model, inputs)
    paths = [v.path for v in model.trainable_variables]
    with swap.suspended():
        assert len(model.trainable_variables) < len(paths)
    assert [v.path for v in model.trainable_variables] == paths
    np.testing.assert_array_equal(models.logits(model, inputs), expected)


def test_gates_alone(tmp_path):
    path = tmp_path / "gates.weights.h5"
    model, swap = gated_model()
    hub.save_gates(model, path)
    other = models.build("llama")
    hub.swap_attention(other, **GATED, layers=[1])
    hub.load_gates(other, path)
    np.testing.assert_array_equal(
        models.logits(other, inputs), models.logits(model, inputs)
    )


def test_weights_files_hold_the_gates(tmp_path):
    """Keras' own files: gates are in those of a gated model."""
    path = str(tmp_path / "model.weights.h5")
    model, swap = gated_model()
    expected = models.logits(model, inputs)
    model.save_weights(path)
    for gate in swap.gates:
        gate.kernel.assign(keras.ops.zeros(gate.kernel.shape))
    model.load_weights(path)
    np.testing.assert_array_equal(models.logits(model, inputs), expected)
    plain = models.build("llama")
    plain.load_weights(path)  # gates are dropped
    path = str(tmp_path / "plain.weights.h5")
    plain.save_weights(path)
    with pytest.raises(ValueError, match="attention_gate"):
        model.load_weights(path)
    with pytest.warns(UserWarning, match="attention_gate"):
        model.load_weights(path, skip_mismatch=True)


def test_a_random_swap_loads_the_models_own_weights(tmp_path):
    """Without gates nothing is added to what Keras saves and loads."""
    path = str(tmp_path / "plain.weights.h5")
    model = models.build("llama")
    model.save_weights(path)
    hub.swap_attention(model, Stochastic(4), seed=SEED)
    model.load_weights(path)


def test_bad_input(tmp_path):
    model = models.build("llama")
    with pytest.raises(ValueError, match="Received: .*not swapped"):
        hub.save_to_preset(model, tmp_path)
    with pytest.raises(ValueError, match="a gated sum.*Received: "):
        hub.load_gates(model, tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="keras_sa.json"):
        hub.from_preset(tmp_path)
    model, _ = gated_model()
    with pytest.raises(ValueError, match=".weights.h5"):
        hub.save_gates(model, tmp_path / "gates.npz")
    hub.save_gates(model, tmp_path / "one.weights.h5")
    hub.swap_attention(model, **GATED, layers="all")
    with pytest.raises(ValueError, match="attention_gate"):
        hub.load_gates(model, tmp_path / "one.weights.h5")


def test_a_class_of_ones_own_is_asked_for(tmp_path):
    model = models.build("llama").backbone
    hub.swap_attention(model, Stochastic(4), seed=SEED)
    hub.save_to_preset(model, tmp_path)
    path = tmp_path / "keras_sa.json"
    path.write_text(path.read_text().replace("LlamaBackbone", "Tuned"))
    with pytest.raises(ValueError, match="`cls` is expected"):
        hub.from_preset(tmp_path)
    loaded = hub.from_preset(tmp_path, cls=keras_hub.models.LlamaBackbone)
    assert hub.current_swap(loaded) is not None
