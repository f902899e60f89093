"""The patterns of a model are which tokens really get weight in it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa import hub
from keras_sa.hub.families import registry
from keras_sa.hub.seeds import layer_seeds
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

LENGTH = 11
SEED = 3
ROUTED = BlockRouted(3, 2)
PER_HEAD = Stochastic(3, neighborhood="block", permutation_per="head")
PATTERNS = (
    SlidingWindow(3),
    GatedSum(SlidingWindow(4)),
    Stochastic(4),
    PER_HEAD,
    Stochastic(4) + SlidingWindow(2, dilation=3),
    PER_HEAD | SlidingWindow(2) | GlobalKeys(first=1) | GlobalQueries(last=2),
    ROUTED,
    ROUTED + SlidingWindow(5),
    Full(),
)
RANDOM = (2, 3, 4, 5)


def one_text(model):
    inputs = models.prompts([LENGTH], LENGTH)
    if "position_ids" in model.backbone.input:  # Gemma 4
        inputs["position_ids"] = np.arange(LENGTH, dtype="int32")[None]
    return inputs


def check_graphs(model):
    """The mask of each layer is who gets weight; returns the patterns."""
    inputs = one_text(model)
    stack = hub.attention_patterns(model, inputs)
    attending = [
        bound
        for bound, decoder in zip(stack, model.backbone.transformer_layers)
        if registry.family_of(decoder).find_attention(decoder) is not None
    ]
    gets_weight = hub.measure_attention(
        model, inputs, lambda weights: (weights > 0).any(axis=(0, 1))
    )
    assert len(gets_weight) == len(attending)
    for bound, expected in zip(attending, gets_weight):
        mask = ops.convert_to_numpy(bound.mask(LENGTH))
        np.testing.assert_array_equal(mask, expected, err_msg=str(bound))
    return stack


def slow_on_jax(test):
    """Marks a test slow where every operation is compiled by itself."""
    on_jax = keras.config.backend() == "jax"
    return pytest.mark.slow(test) if on_jax else test


@slow_on_jax
def test_all_patterns():
    """They are interleaved in one model, which compiles least."""
    model = models.build("llama", num_layers=len(PATTERNS))
    with hub.swap_attention(model, PATTERNS, seed=SEED):
        check_graphs(model)


def test_patterns_are_those_of_the_swap():
    patterns = [x for x in PATTERNS if "routes" not in x.needs()]
    model = models.build("llama", num_layers=len(patterns) + 1)
    with hub.swap_attention(model, patterns, seed=SEED) as swap:
        stack = hub.attention_patterns(model)
        swap.reseed(SEED + 1)
        reseeded = hub.attention_patterns(model)
    seeds = layer_seeds(SEED, len(patterns) + 1)
    expected = [*patterns, patterns[0]]
    assert [bound.pattern for bound in stack] == expected
    assert all(bound.is_causal for bound in stack)
    for index, (before, after) in enumerate(zip(stack, reseeded)):
        is_random = index in RANDOM
        assert before.seed == (seeds[index] if is_random else 0)
        assert (before != after) == is_random
    assert stack[3].num_key_value_heads == 2


@pytest.mark.parametrize("name", models.FAMILIES)
def test_every_family(name):
    """With windows of its own and without, and with heads of their own."""
    models.skip_where_compiled("another family")
    model = models.build(name)
    check_graphs(model)
    for pattern in (PER_HEAD, ROUTED):
        with hub.swap_attention(model, pattern, layers="all", seed=SEED):
            check_graphs(model)


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("window", [4, 5])
def test_bidirectional_layers(name, window):
    models.skip_where_compiled("another family")
    model = models.build(
        name, use_bidirectional_attention=True, sliding_window_size=window
    )
    stack = check_graphs(model)
    assert not any(bound.is_causal for bound in stack)
    # The written pattern is also what a causal model would have.
    for bound in stack:
        mask = ops.convert_to_numpy(bound.pattern.mask(LENGTH, is_causal=True))
        assert not np.triu(mask, 1).any() and mask.any()
    with hub.swap_attention(model, PATTERNS[4], seed=SEED):
        check_graphs(model)


def test_global_layers_beside_native_windows():
    model = models.build("gemma2")
    with hub.swap_attention(model, SlidingWindow(3)):
        first, second = hub.attention_patterns(model)
    assert first == SlidingWindow(models.WINDOW).bind(is_causal=True)
    assert second.pattern == SlidingWindow(3)


def test_linear_attention_knows_everything_before():
    model = models.build("qwen3_5")  # linear attention, then full attention
    with hub.swap_attention(model, SlidingWindow(3)):
        first, second = hub.attention_patterns(model)
    assert first == Full().bind(is_causal=True)
    assert second.pattern == SlidingWindow(3)


def test_the_analysis_finds_the_patterns_of_a_swap():
    model = models.build("llama")
    with hub.swap_attention(model, Stochastic(4), seed=SEED) as swap:
        expected = hub.attention_patterns(model)
        for source in (swap, model, model.backbone):
            assert analysis.as_patterns(source) == expected
    for source in (model, model.backbone):
        assert not hasattr(source, "attention_patterns")
    with pytest.raises(ValueError, match="restored or replaced"):
        swap.attention_patterns()
    with hub.swap_attention(model.backbone, Stochastic(4), seed=SEED):
        assert analysis.as_patterns(model) == expected
    assert hub.attention_patterns(model) == [Full().bind(is_causal=True)] * 2


def test_tokens_that_choose_are_asked():
    model = models.build("llama")
    two_texts = models.prompts([LENGTH, LENGTH], LENGTH)
    padded = models.prompts([LENGTH - 1], LENGTH)
    with hub.swap_attention(model, [ROUTED, ROUTED + Stochastic(2)]) as swap:
        for inputs, received in (
            (None, "None"),
            (two_texts, r"shape \(2, 11\)"),
            (padded, "with padding"),
            (two_texts["token_ids"][0], r"shape \(11,\)"),
        ):
            with pytest.raises(ValueError, match=f"one text.*{received}"):
                swap.attention_patterns(inputs)
        assert all(x.routes is None for x in swap._attentions)
        for bound in swap.attention_patterns(one_text(model)):
            with pytest.raises(ValueError, match="that of the sequence"):
                bound.neighbors(LENGTH + 1)


def test_only_decoders_have_patterns():
    with pytest.raises(ValueError, match="`model` is expected"):
        hub.attention_patterns("llama")
