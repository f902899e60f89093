"""Byte pairs that are trained here are those that KerasHub's models read."""

import re

import keras_hub
import numpy as np
import pytest

from examples.pretrain import tokenizing

TEXTS = [
    "def window(tokens):\n    return tokens[-32:]  # it's the last 32\n\n",
    "for window in windows:\n\twindow.reach += 1\r\n",
    "Größe, \u6f22\u5b57 and \U0001f600: not only ASCII   \n",
]
UNSEEN = "The windows' reach: 12345 tokens,\n\n\n    \u00e9t\u00e9 \u00a0 end "


@pytest.fixture(scope="module")
def byte_pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "tokenizer"
    return tokenizing.load_or_train("bpe", 300, TEXTS, folder)


@pytest.fixture(scope="module")
def trained():
    return tokenizing.train_merges(TEXTS, 300)


def test_both_libraries_encode_alike(byte_pairs, trained):
    """But for runs of spaces, where KerasHub 0.32 merges over words."""
    for text in (*TEXTS, UNSEEN, ""):
        text = re.sub(" +", " ", text)
        expected = trained.encode(text).ids
        np.testing.assert_array_equal(byte_pairs.encode(text), expected)


def test_merges_are_used(byte_pairs):
    assert len(byte_pairs.encode("window")) == 1
    assert byte_pairs.vocabulary_size == 300


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_text_comes_back(byte_pairs, name):
    if name == "bpe":
        tokens = byte_pairs.encode(UNSEEN)
        assert byte_pairs.tokenizer.detokenize(tokens) == UNSEEN
    else:
        tokens = tokenizing.Bytes().encode(UNSEEN)
        assert bytes(tokens.astype("uint8")).decode() == UNSEEN


def test_no_text_has_the_end_token(byte_pairs):
    for tokenizer in (tokenizing.Bytes(), byte_pairs):
        tokens = tokenizer.encode("a zero \0 and an end")
        assert tokenizer.end_token not in tokens
        assert 0 <= tokenizer.end_token < tokenizer.vocabulary_size
        assert tokens.dtype == "int32"


def test_the_preprocessor_encodes_the_same(byte_pairs):
    preprocessor = byte_pairs.preprocessor(8)
    assert isinstance(preprocessor, keras_hub.models.Qwen3CausalLMPreprocessor)
    inputs = preprocessor.generate_preprocess(["a window"], 8)
    expected = byte_pairs.encode("a window")
    tokens = np.asarray(inputs["token_ids"])[0]
    np.testing.assert_array_equal(tokens[: len(expected)], expected)


def test_a_trained_tokenizer_is_not_trained_again(tmp_path):
    folder = tmp_path / "tokenizer"
    first = tokenizing.load_or_train("bpe", 280, TEXTS, folder)

    def nothing():
        raise AssertionError("read again")
        yield

    for name in ("bpe", str(folder)):
        again = tokenizing.load_or_train(name, 280, nothing(), folder)
        assert again.vocabulary_size == first.vocabulary_size
        np.testing.assert_array_equal(
            again.encode(UNSEEN), first.encode(UNSEEN)
        )
