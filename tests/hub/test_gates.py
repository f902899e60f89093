"""Gates: where they start, and how they are read on the tokens of a text."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.patterns import GatedSum
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

LENGTH = 9
LENGTHS = (9, 5)
PATTERNS = [Stochastic(4) + SlidingWindow(4), GatedSum(SlidingWindow(3))]


def gated_model():
    model = models.build("llama")
    swap = hub.swap_attention(model, PATTERNS, seed=3)
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


def test_gates_are_those_of_their_heads_and_terms():
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
    hub.swap_attention(model, PATTERNS, seed=3)
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


# --- where they start


def starts(model, pattern, **options):
    with hub.swap_attention(model, pattern, **options) as swap:
        biases = [ops.convert_to_numpy(gate.bias) for gate in swap.gates]
    assert all((bias == bias[:, :1]).all() for bias in biases)
    return [bias[:, 0].tolist() for bias in biases]


@pytest.mark.parametrize(
    "pattern, expected",
    [
        (Stochastic(4) + SlidingWindow(4), [-2, 2]),
        (SlidingWindow(4) + Stochastic(4), [2, -2]),
        (SlidingWindow(2) + SlidingWindow(4) + Stochastic(4), [-2, 2, -2]),
        (Stochastic(2) + Stochastic(4), [-2, 2]),
        ((Stochastic(2) | SlidingWindow(2)) + SlidingWindow(4), [-2, 2]),
        (GatedSum(SlidingWindow(4)), [2]),
        (GatedSum(Stochastic(4)), [2]),
    ],
    ids=repr,
)
def test_one_gate_is_open(pattern, expected):
    model = models.build("llama", num_layers=1)
    assert starts(model, pattern) == [expected]


def test_a_bias_for_each_term():
    model = models.build("llama")
    three = Stochastic(4) + SlidingWindow(4) + SlidingWindow(2)
    bias = (-1, 0.5, np.float32(3))
    assert starts(model, three, gate_bias=bias) == [[-1, 0.5, 3]] * 2
    assert starts(model, PATTERNS) == [[-2, 2], [2]]


@pytest.mark.parametrize(
    "pattern, gate_bias, message",
    [
        (PATTERNS[0], 1.0, "2 in"),
        (PATTERNS[0], (1.0,), "2 in"),
        (PATTERNS[0], (1.0, 2.0, 3.0), "2 in"),
        (PATTERNS[0], (1.0, np.nan), "finite"),
        (PATTERNS[0], (1.0, None), "finite"),
        (PATTERNS[0], (True, False), "finite"),
        (PATTERNS[0], "ab", "finite"),
        (PATTERNS, (1.0, 2.0), "1 or 2 in"),
        (SlidingWindow(4), (1.0, 2.0), "belongs to a gated sum"),
    ],
)
def test_bad_biases(pattern, gate_bias, message):
    model = models.build("llama")
    with pytest.raises(ValueError, match=f"{message}.*Received: "):
        hub.swap_attention(model, pattern, gate_bias=gate_bias)
    assert hub.current_swap(model) is None


def test_terms_are_summed_by_their_gates():
    model = models.build("llama", num_layers=1)
    attention = model.backbone.transformer_layers[0]._self_attention_layer
    x = np.random.default_rng(0).normal(size=(2, LENGTH, 16))
    x = ops.convert_to_tensor(x, "float32")
    terms = (Stochastic(4), SlidingWindow(3), SlidingWindow(2, dilation=3))
    outputs = []
    for term in terms:
        with hub.swap_attention(model, term, seed=3):
            outputs.append(ops.convert_to_numpy(attention(x)))
    bias = np.array([-1.0, 2.0, 0.5])
    with hub.swap_attention(model, GatedSum(*terms), seed=3, gate_bias=bias):
        received = ops.convert_to_numpy(attention(x))
    gates = 1 / (1 + np.exp(-bias))
    # The output projection of Llama is linear and has no bias.
    expected = sum(gate * output for gate, output in zip(gates, outputs))
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_the_gate_of_a_window_trains():
    model = models.build("llama")
    swap = hub.swap_attention(model, GatedSum(SlidingWindow(3)))
    hub.train_only_gates(model)
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    before = [gate.get_weights() for gate in swap.gates]
    inputs = models.prompts(LENGTHS, LENGTH)
    model.fit(inputs, inputs["token_ids"], verbose=0)
    for gate, weights in zip(swap.gates, before):
        for received, start in zip(gate.get_weights(), weights):
            assert np.abs(received - start).max() > 1e-6
