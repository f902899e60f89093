"""Modes that take turns along the layers, and what tells causes apart: orders
that are none, orders for each head, gates without a second path."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.hub import attention
from tests.hub import models

LENGTH = 12
SEED = 3
INPUTS = models.prompts([LENGTH, LENGTH - 4], LENGTH)
REAL = INPUTS["padding_mask"]


def logits(model, *args, **options):
    """Of real tokens, under a swap."""
    with hub.swap_attention(model, *args, seed=SEED, **options):
        return models.logits(model, INPUTS)[REAL]


def differ(a, b):
    return np.abs(a - b).max() > 1e-3


# --- turns


def outputs_of_layers(model, mode, **options):
    """Of each decoder layer, given the same inputs."""
    random = np.random.default_rng(0)
    x = ops.convert_to_tensor(random.normal(size=(2, LENGTH, 16)), "float32")
    with hub.swap_attention(
        model, mode, seed=SEED, gate_bias=(-0.5, 1.0), **options
    ):
        layers = model.backbone.transformer_layers
        return [ops.convert_to_numpy(layer(x)) for layer in layers]


def test_each_layer_has_its_turn():
    model = models.build("llama", num_layers=4)
    turns = [
        {"mode": "sliding_window"},
        {"mode": "full"},
        {"mode": "small_world", "window_size": 3},
    ]
    received = outputs_of_layers(model, turns, window_size=5)
    for index in range(4):
        turn = dict(turns[index % 3])
        if turn["mode"] == "sliding_window":
            turn["window_size"] = 5
        expected = outputs_of_layers(model, **turn)
        np.testing.assert_array_equal(received[index], expected[index])
        others = [outputs_of_layers(model, "sliding_window", window_size=2)]
        assert differ(received[index], others[0][index])


def test_turns_go_along_the_swapped_layers():
    model = models.build("llama", num_layers=4)
    options = {"window_size": 3, "layers": [1, 2]}
    with hub.swap_attention(
        model, ["stochastic", "small_world"], **options
    ) as swap:
        assert [x.pattern.mode for x in swap._swapped] == [
            "stochastic",
            "small_world",
        ]
        assert len(swap.gates) == 1
    expected = logits(model, "stochastic", window_size=3, layers=[1])
    received = logits(model, ["stochastic", "full"], **options)
    np.testing.assert_array_equal(received, expected)


def test_options_go_to_the_modes_they_belong_to():
    model = models.build("llama")
    swap = hub.swap_attention(
        model,
        ["block_routed", {"mode": "stochastic", "neighborhood": "window"}],
        window_size=6,
        block_size=4,
        top_k=2,
        neighborhood="block",
    )
    routed, stochastic = swap.patterns
    assert (routed.window_size, routed.block_size) == (None, 4)
    assert (stochastic.window_size, stochastic.block_size) == (6, None)
    assert stochastic.neighborhood == "window"


def test_a_mixture_comes_back(tmp_path):
    model = models.build("llama")
    swap = hub.swap_attention(
        model, ["small_world", "sliding_window"], window_size=4, seed=SEED
    )
    for weight in swap.gates[0].weights:
        weight.assign(keras.random.normal(weight.shape, seed=5))
    expected = models.logits(model, INPUTS)
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    assert repr(hub.current_swap(loaded)) == repr(swap)
    np.testing.assert_allclose(
        models.logits(loaded, INPUTS), expected, atol=1e-5
    )


def test_a_mixture_generates_and_is_verified():
    model = models.build("llama")
    prompts = models.prompts([7, 7], LENGTH)
    expected = model.generate(prompts, stop_token_ids=None)["token_ids"]
    turns = [
        {"mode": "stochastic", "window_size": 2 * LENGTH, "decode": "window"},
        {"mode": "sliding_window", "window_size": LENGTH},
    ]
    with hub.swap_attention(model, turns, verify=True):
        received = model.generate(prompts, stop_token_ids=None)["token_ids"]
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize(
    "mode, options, message",
    [
        ([], {}, "take turns"),
        (("full", "nothing"), {}, "nothing"),
        ([{"window_size": 3}], {}, "dicts of a `mode`"),
        ([{"mode": "full", "width": 3}], {}, "dicts of a `mode`"),
        (["full", "sliding_window"], {}, "expects `window_size`"),
        (["full", "sliding_window"], {"window_size": 2, "top_k": 1}, "`top_k`"),
        (["full"] * 3, {}, "no more than the 2 layers"),
    ],
)
def test_bad_turns(mode, options, message):
    model = models.build("llama")
    with pytest.raises(ValueError, match=message) as error:
        hub.swap_attention(model, mode, **options)
    assert "Received:" in str(error.value)
    assert hub.current_swap(model) is None


# --- order="identity"


@pytest.mark.parametrize("window_size", [4, 5])
def test_an_order_that_is_none_is_a_sliding_window(window_size):
    model = models.build("llama")
    options = {"window_size": window_size}
    expected = logits(model, "sliding_window", window_size=3)
    received = logits(model, "stochastic", order="identity", **options)
    np.testing.assert_allclose(received, expected, atol=1e-5)
    assert differ(logits(model, "stochastic", **options), expected)


def test_two_windows_behind_gates():
    """Both paths alike: the gates add up to one."""
    model = models.build("llama")
    received = logits(
        model,
        "small_world",
        window_size=5,
        local_window_size=3,
        order="identity",
        gate_bias=(0, 0),
    )
    expected = logits(model, "sliding_window", window_size=3)
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_no_order_draws_nothing():
    model = models.build("llama")
    options = {"window_size": 5, "order": "identity"}
    with hub.swap_attention(model, "stochastic", **options):
        assert model.backbone.non_trainable_variables == []


# --- permute="head"


def test_an_order_for_every_head(monkeypatch):
    orders = []
    attend = attention.attend_in_order

    def spy(query, key, value, permutation, **options):
        orders.append(tuple(permutation.shape))
        return attend(query, key, value, permutation, **options)

    monkeypatch.setattr(attention, "attend_in_order", spy)
    model = models.build("llama")
    received = logits(model, "stochastic", window_size=4, permute="head")
    num_layers, num_key_value_heads = 2, 2
    assert orders == [(2, num_key_value_heads, LENGTH)] * num_layers
    assert differ(received, logits(model, "stochastic", window_size=4))


@pytest.mark.parametrize("mode", ["stochastic", "small_world"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_orders_of_heads_over_everything(name, mode):
    if name != "llama":
        models.skip_where_compiled("more families")
    model = models.build(name)
    hub.swap_attention(model, mode, window_size=4, permute="head", verify=True)


def test_orders_of_heads_decode_over_everything():
    model = models.build("llama")
    with hub.swap_attention(
        model, "small_world", window_size=4, permute="head"
    ) as swap:
        assert swap.patterns[0].decode == "full"
    with pytest.raises(ValueError, match="expects decode='full'"):
        hub.swap_attention(
            model, "stochastic", window_size=4, permute="head", decode="window"
        )


# --- merge="gate" of a sliding window


def test_a_gate_on_a_window():
    model = models.build("llama", num_layers=1)
    layer = model.backbone.transformer_layers[0]._self_attention_layer
    random = np.random.default_rng(0)
    x = ops.convert_to_tensor(random.normal(size=(2, LENGTH, 16)), "float32")
    with hub.swap_attention(model, "sliding_window", window_size=3):
        expected = ops.convert_to_numpy(layer(x))
    with hub.swap_attention(
        model,
        "sliding_window",
        window_size=3,
        merge="gate",
        gate_bias=(9.0, -1.0),
    ) as swap:
        received = ops.convert_to_numpy(layer(x))
        assert swap.patterns[0].decode == "window"
        assert swap.gates[0].kernel.shape == (16, 1, 4)
    # The output projection of Llama is linear and has no bias.
    np.testing.assert_allclose(
        received, expected / (1 + np.exp(1.0)), atol=1e-6
    )


def test_the_gate_of_a_window_trains():
    model = models.build("llama")
    swap = hub.swap_attention(
        model, "sliding_window", window_size=3, merge="gate", seed=SEED
    )
    hub.train_only_gates(model)
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    before = [gate.get_weights() for gate in swap.gates]
    model.fit(INPUTS, INPUTS["token_ids"], verbose=0)
    for gate, weights in zip(swap.gates, before):
        for received, start in zip(gate.get_weights(), weights):
            assert np.abs(received - start).max() > 1e-6
