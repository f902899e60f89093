"""A pattern of one's own, which has `neighbors` and nothing else."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from tests.hub import models
from tests.hub.test_decoding import stepwise_logits

LENGTH = 12
PROMPT_LENGTH = 7
SEED = 3


@keras.saving.register_keras_serializable("tests_of_hub")
@dataclasses.dataclass(frozen=True)
class Powers(Pattern):
    """Keys 0, 1, 2, 4, ... tokens back; the last of them twice."""

    count: int

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        back = [0, *(2**i for i in range(self.count))]
        back = np.array([*back, back[-1]], "int32")
        neighbor = positions[:, None] - back
        return ops.where(neighbor >= 0, neighbor, -1)


def patterns():
    return {
        "alone": Powers(3),
        "in_a_union": Powers(3) | SlidingWindow(2) | GlobalKeys(first=1),
        "in_a_gated_sum": Powers(3) + SlidingWindow(3),
    }


each = pytest.mark.parametrize("name", patterns())


def generate(model):
    prompts = models.prompts([PROMPT_LENGTH] * 2, LENGTH)
    return model.generate(prompts, stop_token_ids=None)["token_ids"]


def best(model, token_ids):
    everything = {
        "token_ids": token_ids,
        "padding_mask": np.ones_like(token_ids, bool),
    }
    return models.logits(model, everything).argmax(-1)


@pytest.mark.parametrize(
    "family, name",
    [
        ("llama", "alone"),
        ("llama", "in_a_union"),
        ("llama", "in_a_gated_sum"),
        ("bloom", "in_a_union"),  # with ALiBi
    ],
)
def test_greedy_decoding_is_the_forward_pass(name, family):
    if family == "bloom" or name != "in_a_gated_sum":
        models.skip_where_compiled("other families and combinations")
    model = models.build(family)
    with hub.swap_attention(model, patterns()[name], decode="pattern"):
        tokens = generate(model)
        expected = best(model, tokens)
        steps = stepwise_logits(model, tokens, [1, 2, 1])
    written = slice(PROMPT_LENGTH, None)
    before = slice(PROMPT_LENGTH - 1, -1)
    np.testing.assert_array_equal(tokens[:, written], expected[:, before])
    np.testing.assert_array_equal(steps.argmax(-1), expected)


@pytest.mark.parametrize("padded", [False, True])
def test_a_prompt_is_read_by_the_pattern(padded):
    """Each key once; and padding takes no place."""
    if not padded:
        models.skip_where_compiled("without padding")
    model = models.build("llama")
    inputs = models.prompts([LENGTH, LENGTH - 5 * padded], LENGTH)
    real = inputs["padding_mask"]
    with hub.swap_attention(model, Powers(2), seed=SEED):
        for bound in hub.attention_patterns(model):
            assert bound.pattern == Powers(2)
            mask = ops.convert_to_numpy(bound.mask(LENGTH))
        weights = hub.measure_attention(model, inputs, lambda weights: weights)
    i, j = np.indices((LENGTH, LENGTH))
    np.testing.assert_array_equal(mask, np.isin(i - j, [0, 1, 2]))
    expected = mask & real[:, :, None] & real[:, None]
    for layer in weights:
        np.testing.assert_array_equal((layer > 0).all(axis=1), expected)
        np.testing.assert_allclose(
            layer.sum(-1), real[:, None] * np.ones((2, 4, 1)), atol=1e-5
        )


@each
def test_a_preset_brings_it_back(name, tmp_path):
    if name != "in_a_gated_sum":
        models.skip_where_compiled("other combinations")
    model = models.build("llama")
    inputs = models.prompts([LENGTH], LENGTH)
    swap = hub.swap_attention(model, patterns()[name], seed=SEED)
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    assert hub.current_swap(loaded).patterns == swap.patterns
    np.testing.assert_allclose(
        models.logits(loaded, inputs), models.logits(model, inputs), atol=1e-5
    )


def test_a_preset_with_a_pattern_that_nobody_registered(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Unknown(Powers):
        pass

    model = models.build("llama")
    hub.swap_attention(model, Unknown(2) | SlidingWindow(2), seed=SEED)
    hub.save_to_preset(model, tmp_path)
    with pytest.raises(ValueError, match="register_keras_serializable") as e:
        hub.from_preset(tmp_path)
    assert "Unknown" in str(e.value) and "Received: " in str(e.value)


@dataclasses.dataclass(frozen=True)
class Wrong(Pattern):
    """Neighbors of a wrong shape, dtype or place."""

    what: str

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        neighbors = np.zeros((length, 2), "int32")
        return {
            "shape": neighbors[0],
            "rows": neighbors[1:],
            "dtype": neighbors.astype("float32"),
            "ahead": neighbors + length,
            "before": neighbors - 2,
        }[self.what]


@pytest.mark.parametrize("what", ["shape", "rows", "dtype", "ahead", "before"])
def test_wrong_neighbors_are_named(what):
    if what != "ahead":
        models.skip_where_compiled("other faults")
    model = models.build("llama")
    inputs = models.prompts([LENGTH], LENGTH)
    tensors = {k: ops.convert_to_tensor(x) for k, x in inputs.items()}
    with hub.swap_attention(model, Wrong(what)):
        with pytest.raises(ValueError, match="`neighbors` is expected") as e:
            model(tensors)
    assert "Received: neighbors of Wrong" in str(e.value)
