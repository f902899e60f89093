"""Text becomes tokens, each is predicted once, and the loss is the mean."""

import argparse

import keras_hub
import numpy as np
import pytest
from keras import ops

from examples.shared import language_model
from examples.shared.language_model import LanguageModel

LENGTH = 8
TEXT = b"the thing in there: the end of it"


def bytes_as_characters():
    """The characters that byte-level BPE writes bytes as."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in sorted(shown)] + [
        chr(256 + index) for index in range(len(hidden))
    ]


@pytest.fixture(scope="module")
def with_preprocessor():
    """A model whose tokenizer merges, and whose texts have a start token."""
    merges = ["t h", "th e", "i n"]
    words = [merge.replace(" ", "") for merge in merges]
    names = [*bytes_as_characters(), *words, "<|endoftext|>"]
    tokenizer = keras_hub.models.GPT2Tokenizer(
        vocabulary={name: index for index, name in enumerate(names)},
        merges=merges,
    )
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(names),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=16,
        max_sequence_length=LENGTH,
    )
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer)
    return make(keras_hub.models.GPT2CausalLM(backbone, preprocessor))


@pytest.fixture(scope="module")
def of_bytes():
    return make(without_preprocessor(256))


def without_preprocessor(vocabulary_size):
    backbone = keras_hub.models.Qwen3Backbone(
        vocabulary_size=vocabulary_size,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        hidden_dim=16,
        intermediate_dim=16,
    )
    return keras_hub.models.Qwen3CausalLM(backbone=backbone)


def make(causal_lm):
    model = LanguageModel(causal_lm)
    model.compile(seed=0)
    return model


@pytest.fixture(params=["with_preprocessor", "of_bytes"])
def model(request):
    return request.getfixturevalue(request.param)


def load(preset):
    return language_model.load(argparse.Namespace(preset=preset, dtype=None))


def test_a_preset_or_the_small_model_is_loaded(tiny_preset):
    num_layers = [
        load(preset).causal_lm.backbone.num_layers
        for preset in (str(tiny_preset), None)
    ]
    assert num_layers == [1, 6]


def test_text_comes_back(model):
    assert model.decode(model.encode(TEXT)) == TEXT.decode()


def test_no_more_is_encoded_than_needed(with_preprocessor, of_bytes):
    text = np.frombuffer(TEXT * 10, "uint8")
    # A tokenizer may be slow.
    assert 4 <= len(with_preprocessor.encode_some(text, 4)) < len(text) // 4
    assert len(of_bytes.encode_some(text, 4)) == len(text)


def test_merged_tokens_are_fewer(with_preprocessor):
    assert len(with_preprocessor.encode(TEXT)) < len(TEXT)


def test_every_token_is_a_target_once(model):
    tokens = model.encode(TEXT)
    inputs, targets = model.cut(tokens, LENGTH)
    num_start = len(model.start_tokens)
    first = 1 - num_start  # without a start token nothing predicts the first
    assert inputs["token_ids"].shape == targets.shape
    np.testing.assert_array_equal(
        targets.reshape(-1), tokens[first : first + targets.size]
    )
    assert len(tokens) - first - targets.size < LENGTH


@pytest.mark.parametrize("num_sequences, expected", [(3, 3), (99, 5)])
def test_sequences_are_spread_over_the_text(of_bytes, num_sequences, expected):
    tokens = np.arange(5 * LENGTH + 4)
    inputs, targets = of_bytes.spread(tokens, num_sequences, LENGTH)
    assert len(targets) == expected
    assert inputs["token_ids"][0, 0] == 0 and targets[-1, -1] == tokens[-1]
    assert len(np.unique(targets)) == targets.size


def test_sequences_begin_with_the_start_token(with_preprocessor):
    start = with_preprocessor.preprocessor.tokenizer.start_token_id
    tokens = with_preprocessor.encode(TEXT)
    rng = np.random.default_rng(0)
    for inputs, _ in (
        with_preprocessor.cut(tokens, LENGTH),
        with_preprocessor.draw(tokens, 3, LENGTH, rng),
    ):
        assert np.all(inputs["token_ids"][:, 0] == start)


def test_loss_is_total_over_tokens(model):
    inputs, targets = model.cut(model.encode(TEXT), LENGTH)
    logits = model.causal_lm.predict(inputs, verbose=0)
    log_probability = ops.convert_to_numpy(ops.log_softmax(logits))
    of_targets = np.take_along_axis(log_probability, targets[..., None], -1)
    # Batches of 2 do not divide all: no mean of means.
    loss = model.loss((inputs, targets), batch_size=2)
    assert loss == pytest.approx(-of_targets.mean(), rel=1e-4)


def test_writes_as_many_tokens_as_asked_for(model):
    tokens = model.encode(TEXT)
    for num_new in (1, 3):
        written = model.generate(tokens, num_new, LENGTH)
        assert written.shape == (num_new,)


def test_short_text_is_explained(model):
    with pytest.raises(SystemExit, match="at least"):
        model.cut(model.encode(b"ab"), LENGTH)


def test_model_without_preprocessor_is_of_bytes():
    causal_lm = without_preprocessor(300)
    with pytest.raises(ValueError, match="a vocabulary of 256"):
        LanguageModel(causal_lm)
