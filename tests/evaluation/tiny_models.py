"""Tiny models of tests/hub, and what they say of tokens, slowly."""

import functools
import pathlib
import sys

import numpy as np

from keras_sa.evaluation import TokenScorer

sys.path.append(str(pathlib.Path(__file__).parents[1] / "hub"))

import models  # noqa: E402

VOCABULARY_SIZE = models.VOCABULARY_SIZE
build = models.build
skip_where_compiled = models.skip_where_compiled


@functools.cache
def shared_model():
    """A model for many tests, which leave it as it is."""
    return build("qwen3")


@functools.cache
def shared_scorer():
    """The scorer of `shared_model`, with what it compiled."""
    return TokenScorer(shared_model(), batch_size=3)


def log_softmax(causal_lm, token_ids, padding_mask=None):
    """What comes after each of tokens `[N, n]`: float64 `[N, n, V]`."""
    token_ids = np.asarray(token_ids, "int32")
    if padding_mask is None:
        padding_mask = np.ones_like(token_ids)
    padding_mask = np.asarray(padding_mask)
    inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
    logits = models.logits(causal_lm, inputs).astype("float64")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def random_sequences(lengths, vocabulary_size=VOCABULARY_SIZE, seed=0):
    """A list of random tokens for each length, none of them 0."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocabulary_size, n).tolist() for n in lengths]


def pad(sequences, side="right"):
    """Rows of one length and their padding mask. Padding is not zero."""
    length = max(map(len, sequences))
    token_ids = np.full((len(sequences), length), 7)
    mask = np.zeros(token_ids.shape, bool)
    for index, tokens in enumerate(sequences):
        where = slice(0, len(tokens))
        if side == "left":
            where = slice(length - len(tokens), length)
        token_ids[index, where], mask[index, where] = tokens, True
    return token_ids, mask
