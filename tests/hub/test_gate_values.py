"""Gates are read as the tokens of a text get them."""

import keras
import numpy as np
import pytest

from keras_sa import hub
from tests.hub import models

LENGTH = 9
LENGTHS = (9, 5)
MODES = [
    {"mode": "small_world", "window_size": 4},
    {"mode": "sliding_window", "window_size": 3, "merge": "gate"},
]


def gated_model():
    model = models.build("llama")
    swap = hub.swap_attention(model, MODES, seed=3)
    rng = np.random.default_rng(0)
    for gate in swap.gates:  # that tokens differ
        gate.kernel.assign(rng.normal(size=gate.kernel.shape))
    return model, swap


def text(row):
    """One row of the batch, without its padding."""
    inputs = models.prompts(LENGTHS, LENGTH)
    return {k: x[row : row + 1, : LENGTHS[row]] for k, x in inputs.items()}


def test_gates_are_means_over_the_tokens_without_padding():
    models.skip_where_compiled("texts of several lengths")
    model, swap = gated_model()
    received = hub.gate_values(model, models.prompts(LENGTHS, LENGTH))
    assert [x.shape for x in received] == [(2, 4), (1, 4)]
    assert swap.gated_layers == [0, 1]
    alone = [hub.gate_values(model.backbone, text(row)) for row in range(2)]
    for layer, *parts in zip(received, *alone):
        expected = np.average(parts, axis=0, weights=LENGTHS)
        np.testing.assert_allclose(layer, expected, atol=1e-5)
        assert np.ptp(layer) > 0.01


def test_padding_may_hold_anything():
    model, _ = gated_model()
    meter = hub.GateMeter(model)
    inputs = models.prompts(LENGTHS, LENGTH)
    expected = meter.measure(inputs)
    inputs["token_ids"] = np.where(
        inputs["padding_mask"], inputs["token_ids"], 1
    )
    for layer, other in zip(meter.measure(inputs), expected):
        np.testing.assert_allclose(layer, other, rtol=1e-6)
    inputs["padding_mask"] = np.ones_like(inputs["padding_mask"])
    for layer, other in zip(meter.measure(inputs), expected):
        assert np.abs(layer - other).max() > 1e-3


def test_gates_are_those_of_their_heads_and_paths():
    model, swap = gated_model()
    expected = np.linspace(0.1, 0.9, 8).reshape(2, 4)
    gate = swap.gates[0]
    gate.kernel.assign(np.zeros(gate.kernel.shape))
    gate.bias.assign(np.log(expected / (1 - expected)))
    received, _ = hub.gate_values(model, text(0))
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_a_meter_is_compiled_once_and_sees_what_gates_learn():
    model, swap = gated_model()
    calls = []

    class Meter(hub.GateMeter):
        def call(self, inputs):
            calls.append(1)
            return super().call(inputs)

    meter = Meter(model)
    meter.measure(text(0))
    compiled = len(calls)
    for gate in swap.gates:
        gate.kernel.assign(np.zeros(gate.kernel.shape))
        gate.bias.assign(np.zeros(gate.bias.shape))
    for layer in meter.measure(text(0)):
        np.testing.assert_allclose(layer, 0.5, rtol=1e-6)
    if keras.config.backend() != "torch":  # which compiles nothing
        assert len(calls) == compiled


def test_a_meter_belongs_to_a_swap():
    model, swap = gated_model()
    meter = hub.GateMeter(model)
    hub.swap_attention(model, MODES, seed=3)
    with pytest.raises(ValueError, match="under the swap.*other gates"):
        meter.measure(text(0))
    hub.current_swap(model).restore()
    with pytest.raises(ValueError, match="expected to have gates"):
        meter.measure(text(0))


@pytest.mark.parametrize("measure", [hub.GateMeter, hub.gate_values])
def test_a_model_without_gates(measure):
    model = models.build("llama")
    arguments = () if measure is hub.GateMeter else (text(0),)
    with pytest.raises(ValueError, match="expected to have gates"):
        measure(model, *arguments)
