"""One pattern for all layers, interleaved ones, or one for each layer."""

import numpy as np
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

LENGTH = 12
SEED = 3
INPUTS = models.prompts([LENGTH, LENGTH - 4], LENGTH)
REAL = INPUTS["padding_mask"]
GATED = Stochastic(3) + SlidingWindow(3)


def logits(model, pattern, **options):
    """Of real tokens, under a swap."""
    with hub.swap_attention(model, pattern, seed=SEED, **options):
        return models.logits(model, INPUTS)[REAL]


def outputs_of_layers(model, pattern):
    """Of each decoder layer, given the same inputs."""
    random = np.random.default_rng(0)
    x = ops.convert_to_tensor(random.normal(size=(2, LENGTH, 16)), "float32")
    with hub.swap_attention(model, pattern, seed=SEED):
        layers = model.backbone.transformer_layers
        return [ops.convert_to_numpy(layer(x)) for layer in layers]


def test_interleaved_patterns():
    model = models.build("llama", num_layers=4)
    patterns = [SlidingWindow(5), Full(), GATED]
    received = outputs_of_layers(model, patterns)
    other = outputs_of_layers(model, SlidingWindow(2))
    for index in range(4):
        expected = outputs_of_layers(model, patterns[index % 3])
        np.testing.assert_array_equal(received[index], expected[index])
        assert np.abs(received[index] - other[index]).max() > 1e-3
    with hub.swap_attention(model, patterns) as swap:
        assert swap.patterns == {0: SlidingWindow(5), 2: GATED, 3: patterns[0]}
        assert swap.layers == [0, 2, 3]
        assert (swap.gated_layers, len(swap.gates)) == ([2], 1)


def test_they_go_along_the_swapped_layers():
    model = models.build("llama", num_layers=4)
    with hub.swap_attention(model, [Stochastic(3), GATED], layers=[1, 2]) as x:
        assert x.patterns == {1: Stochastic(3), 2: GATED}
    expected = logits(model, Stochastic(3), layers=[1])
    received = logits(model, [Stochastic(3), Full()], layers=[2, 1])
    np.testing.assert_array_equal(received, expected)


def test_a_dict_names_the_layers():
    """Also such as have a window of their own."""
    model = models.build("gemma2")  # layer 0 has a window, layer 1 has none
    patterns = {np.int64(1): Stochastic(3), 0: SlidingWindow(2)}
    with hub.swap_attention(model, patterns, seed=SEED) as swap:
        assert swap.patterns == {0: SlidingWindow(2), 1: Stochastic(3)}
    received = logits(model, {0: SlidingWindow(2)})
    expected = logits(model, SlidingWindow(2), layers=[0])
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize(
    "pattern, message",
    [
        ([], "at least one"),
        ([Full()] * 3, "no more than the 2 layers"),
        ([SlidingWindow(2), "full"], r"`pattern\[1\]`.*patterns.Full\(\)"),
        ({}, "an empty dict"),
        ({5: SlidingWindow(2)}, r"have attention: \[0, 1\].*\[5\]"),
        ({True: SlidingWindow(2)}, r"\[True\]"),
        ({1.0: SlidingWindow(2)}, r"\[1.0\]"),
        ({1: "small_world"}, r"Stochastic\(window_size\) \|"),
    ],
)
def test_bad_patterns(pattern, message):
    model = models.build("llama")
    with pytest.raises(ValueError, match=message) as error:
        hub.swap_attention(model, pattern)
    assert "Received:" in str(error.value)
    assert hub.current_swap(model) is None


@pytest.mark.parametrize("layers", ["all", [0]])
def test_a_dict_and_layers(layers):
    model = models.build("llama")
    with pytest.raises(ValueError, match="expects no `layers`.*Received"):
        hub.swap_attention(model, {0: SlidingWindow(2)}, layers=layers)


def test_permutations_of_heads():
    """Each key/value head attends by its own."""
    model = models.build("llama")
    per_head = Stochastic(4, permutation_per="head")
    received = logits(model, per_head)
    assert np.abs(received - logits(model, Stochastic(4))).max() > 1e-3
    with hub.swap_attention(model, per_head, seed=SEED):
        weights = hub.measure_attention(model, INPUTS, lambda x: x > 0)
    for layer in weights:  # of 4 query heads and 2 key/value heads
        np.testing.assert_array_equal(layer[:, 0], layer[:, 1])
        np.testing.assert_array_equal(layer[:, 2], layer[:, 3])
        assert (layer[:, 0] != layer[:, 2]).any()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_permutation_over_everything_for_each_head(name):
    """Keys and values are repeated in one family, and not in the others."""
    if name != "llama":
        models.skip_where_compiled("more families")
    model = models.build(name)
    expected = models.logits(model, INPUTS)[REAL]
    covering = Stochastic(2 * LENGTH, permutation_per="head")
    received = logits(model, covering | SlidingWindow(3))
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_two_windows_behind_gates():
    """A control without randomness: both terms alike, gates of 1/2."""
    model = models.build("llama")
    pattern = SlidingWindow(5 // 2 + 1) + SlidingWindow(3)
    with hub.swap_attention(model, pattern, gate_bias=(0, 0)):
        assert not model.backbone.non_trainable_variables
    received = logits(model, pattern, gate_bias=(0, 0))
    expected = logits(model, SlidingWindow(3))
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_a_mixture_comes_back(tmp_path):
    model = models.build("llama")
    patterns = {0: GATED, 1: BlockRouted(3, 2) + SlidingWindow(4)}
    swap = hub.swap_attention(model, patterns, seed=SEED)
    swap.gates[1].kernel.assign(
        np.random.default_rng(5).normal(size=swap.gates[1].kernel.shape)
    )
    expected = models.logits(model, INPUTS)
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    assert repr(hub.current_swap(loaded)) == repr(swap)
    np.testing.assert_allclose(
        models.logits(loaded, INPUTS), expected, atol=1e-5
    )
