"""What makes tokens of documents: bytes, or byte pairs.

A tokenizer has `vocabulary_size`, `end_token`, `encode(text)` and
`preprocessor(length)`, and is kept beside the run.
"""

import json
import pathlib
import shutil

import keras_hub
import numpy as np
import tokenizers
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

from examples.shared import byte_text

BYTES = "bytes"
BYTE_PAIRS = "bpe"
# No merge crosses the end of a word. These are the words of Llama 3, and those
# that KerasHub names. But KerasHub 0.32 takes them for a literal string, finds
# none, and merges over all of a text: that differs where runs of spaces are.
# So documents are encoded by KerasHub, too, as prompts will be.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL_TOKENS = ["<|im_end|>", "<|endoftext|>"]  # Qwen 3: end and padding


class Bytes:
    """A token is a byte; documents end with a zero, which texts have not."""

    vocabulary_size = byte_text.VOCABULARY_SIZE
    end_token = byte_text.SEPARATOR[0]

    def encode(self, text):
        """int32 `[n]` of a string."""
        text = text.encode("utf-8", errors="replace")
        text = text.replace(byte_text.SEPARATOR, b"")
        return np.frombuffer(text, "uint8").astype("int32")

    def preprocessor(self, length):
        """None: KerasHub has none that fits."""


class BytePairs:
    """Byte pairs, as KerasHub merges them.

    Args:
        tokenizer: a `keras_hub.models.Qwen3Tokenizer`.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.vocabulary_size = tokenizer.vocabulary_size()
        self.end_token = tokenizer.end_token_id

    def encode(self, text):
        """int32 `[n]` of a string."""
        # Not a call of the layer: that would put tokens on the device.
        return np.asarray(self.tokenizer.tokenize(text), "int32")

    def preprocessor(self, length):
        """With which the preset of the model takes strings."""
        return keras_hub.models.Qwen3CausalLMPreprocessor(
            self.tokenizer, sequence_length=length
        )


def vocabulary_size(name, num_byte_pairs):
    """Of a tokenizer, before it is trained.

    Args:
        name: as in `load_or_train`.
        num_byte_pairs: the size of byte pairs to train.
    """
    if name == BYTE_PAIRS:
        return num_byte_pairs
    return load_or_train(name, None, (), None).vocabulary_size


def load_or_train(name, num_byte_pairs, texts, folder):
    """The tokenizer of a run: its own, if it has been there before.

    Args:
        name: `"bytes"`; `"bpe"`; the folder of trained byte pairs; or what
            `Qwen3Tokenizer.from_preset` takes.
        num_byte_pairs: the size of byte pairs to train.
        texts: strings to train on, iterable.
        folder: path that keeps trained byte pairs.
    """
    if name == BYTES:
        return Bytes()
    if name != BYTE_PAIRS:
        return BytePairs(_load(pathlib.Path(name), name))
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        train(texts, num_byte_pairs).save_assets(str(partial))
        partial.rename(folder)  # whole or not at all
    return BytePairs(_load(folder, name))


def _load(folder, preset):
    """A `Qwen3Tokenizer` from its two files, or from a preset.

    A preset of KerasHub has to have a model.
    """
    if not (folder / "merges.txt").is_file():
        return keras_hub.models.Qwen3Tokenizer.from_preset(preset)
    tokenizer = keras_hub.models.Qwen3Tokenizer()
    tokenizer.load_assets(str(folder))
    return tokenizer


def train(texts, vocabulary_size):
    """A `keras_hub.models.Qwen3Tokenizer` with merges of these texts."""
    tokenizer = train_merges(texts, vocabulary_size)
    model = json.loads(tokenizer.to_str())["model"]
    return keras_hub.models.Qwen3Tokenizer(
        vocabulary=model["vocab"],
        merges=[" ".join(pair) for pair in model["merges"]],
    )


def train_merges(texts, vocabulary_size):
    """A `tokenizers.Tokenizer` of byte pairs."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
