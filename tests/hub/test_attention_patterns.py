"""The patterns of a model are who really gets weight in it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa import hub
from keras_sa.hub.families import registry
from keras_sa.hub.seeds import layer_seeds
from keras_sa.ops import patterns
from tests.hub import models

LENGTH = 11
SEED = 3
ROUTED = {"mode": "block_routed", "block_size": 3, "top_k": 2}
MODES = (
    {"mode": "sliding_window", "window_size": 3},
    {"mode": "sliding_window", "window_size": 4, "merge": "gate"},
    {"mode": "stochastic", "window_size": 4},
    {
        "mode": "stochastic",
        "window_size": 3,
        "neighborhood": "block",
        "permute": "head",
    },
    {"mode": "stochastic", "window_size": 6, "order": "identity"},
    {"mode": "small_world", "window_size": 4, "local_window_size": 2},
    {
        "mode": "small_world",
        "window_size": 3,
        "merge": "softmax",
        "neighborhood": "block",
        "permute": "head",
    },
    ROUTED,
    "full",
)


def one_text(model):
    inputs = models.prompts([LENGTH], LENGTH)
    if "position_ids" in model.backbone.input:  # Gemma 4
        inputs["position_ids"] = np.arange(LENGTH, dtype="int32")[None]
    return inputs


def check_graphs(model):
    """The graph of each layer is who gets weight; returns the patterns."""
    inputs = one_text(model)
    stack = hub.attention_patterns(model, inputs)
    attending = [
        pattern
        for pattern, decoder in zip(stack, model.backbone.transformer_layers)
        if registry.family_of(decoder).find_attention(decoder) is not None
    ]
    gets_weight = hub.measure_attention(
        model, inputs, lambda weights: (weights > 0).any(axis=(0, 1))
    )
    assert len(gets_weight) == len(attending)
    for pattern, expected in zip(attending, gets_weight):
        graph = analysis.attention_graph(pattern, LENGTH).toarray()
        np.testing.assert_array_equal(graph, expected, err_msg=str(pattern))
    return stack


def slow_on_jax(test):
    """Marks a test slow where every operation is compiled by itself."""
    on_jax = keras.config.backend() == "jax"
    return pytest.mark.slow(test) if on_jax else test


@slow_on_jax
def test_all_modes():
    """They take turns in one model, which compiles least."""
    model = models.build("llama", num_layers=len(MODES))
    with hub.swap_attention(model, MODES, seed=SEED):
        check_graphs(model)


def test_patterns_are_those_of_the_swap():
    modes = [mode for mode in MODES if mode is not ROUTED]
    model = models.build("llama", num_layers=len(modes) + 1)
    with hub.swap_attention(model, modes, seed=SEED) as swap:
        stack = hub.attention_patterns(model)
        swap.reseed(SEED + 1)
        reseeded = hub.attention_patterns(model)
    seeds = layer_seeds(SEED, len(model.backbone.transformer_layers))
    assert stack[:3] == [
        patterns.SlidingWindow(3, causal=True),
        patterns.SlidingWindow(4, causal=True),
        patterns.Stochastic(4, seed=seeds[2], causal=True),
    ]
    assert stack[4] == patterns.Stochastic(6, order="identity", causal=True)
    assert stack[-2:] == [patterns.Full(causal=True), stack[0]]
    for index, (before, after) in enumerate(zip(stack, reseeded)):
        assert (before != after) == (index in (2, 3, 5, 6))


@pytest.mark.parametrize("name", models.FAMILIES)
def test_every_family(name):
    """With windows of its own and without, and with heads of their own."""
    models.skip_where_compiled("another family")
    model = models.build(name)
    check_graphs(model)
    for options in (MODES[3], ROUTED):
        with hub.swap_attention(model, [options], layers="all", seed=SEED):
            check_graphs(model)


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("window", [4, 5])
def test_layers_that_look_both_ways(name, window):
    models.skip_where_compiled("another family")
    model = models.build(
        name, use_bidirectional_attention=True, sliding_window_size=window
    )
    stack = check_graphs(model)
    assert not any(pattern.causal for pattern in stack)
    for pattern in analysis.as_patterns(stack, causal=True):
        graph = analysis.attention_graph(pattern, LENGTH).toarray()
        mask = ops.convert_to_numpy(pattern.mask(LENGTH))
        np.testing.assert_array_equal(graph, mask)
        assert not np.triu(graph, 1).any()
    options = {**MODES[5], "layers": "global", "seed": SEED}
    with hub.swap_attention(model, **options):
        check_graphs(model)


def test_global_layers_beside_native_windows():
    model = models.build("gemma2")
    with hub.swap_attention(model, **MODES[0]):
        assert hub.attention_patterns(model) == [
            patterns.SlidingWindow(models.WINDOW, causal=True),
            patterns.SlidingWindow(3, causal=True),
        ]


def test_linear_attention_hears_everything_before():
    model = models.build("qwen3_5")  # linear attention, then full attention
    with hub.swap_attention(model, **MODES[0]):
        assert hub.attention_patterns(model) == [
            patterns.Full(causal=True),
            patterns.SlidingWindow(3, causal=True),
        ]


def test_the_analysis_finds_the_patterns_of_a_swap():
    model = models.build("llama")
    with hub.swap_attention(model, **MODES[2], seed=SEED) as swap:
        expected = hub.attention_patterns(model)
        for source in (swap, model, model.backbone):
            assert analysis.as_patterns(source) == expected
    for source in (model, model.backbone):
        assert not hasattr(source, "attention_patterns")
    with pytest.raises(ValueError, match="restored or replaced"):
        swap.attention_patterns()
    with hub.swap_attention(model.backbone, **MODES[2], seed=SEED):
        assert analysis.as_patterns(model) == expected
    assert hub.attention_patterns(model) == [patterns.Full(causal=True)] * 2


def test_tokens_that_choose_are_asked():
    model = models.build("llama")
    two_texts = models.prompts([LENGTH, LENGTH], LENGTH)
    padded = models.prompts([LENGTH - 1], LENGTH)
    with hub.swap_attention(model, **ROUTED) as swap:
        for inputs, received in (
            (None, "None"),
            (two_texts, r"shape \(2, 11\)"),
            (padded, "with padding"),
            (two_texts["token_ids"][0], r"shape \(11,\)"),
        ):
            with pytest.raises(ValueError, match=f"one text.*{received}"):
                swap.attention_patterns(inputs)
        assert all(x.routes is None for x in swap._swapped)


def test_only_decoders_have_patterns():
    with pytest.raises(ValueError, match="`model` is expected"):
        hub.attention_patterns("llama")
