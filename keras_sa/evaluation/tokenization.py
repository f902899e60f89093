"""Text as tokens, whatever makes them."""

import dataclasses
from collections.abc import Callable

import numpy as np

_END_TOKENS = ("end_token_id", "end_token2_id")


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """How text becomes tokens of a model, and tokens text.

    Attributes:
        encode: from a string to a list of ints, without start and end tokens.
        decode: from a list of ints to a string.
        start_token_id: the token that texts of the model begin with, if any.
        end_token_ids: tokens that end a text.
        adds_start_token: whether the model reads the start token in front of
            all text.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    start_token_id: int | None = None
    end_token_ids: tuple[int, ...] = ()
    adds_start_token: bool = False

    def encode_with_start(self, text):
        """Tokens of a text, with a start token in front if it is added."""
        tokens = self.encode(text)
        start = [self.start_token_id] if self.adds_start_token else []
        return tokens if tokens[: len(start)] == start else start + tokens


def tokenization_of(causal_lm, tokenizer=None, add_start_token=None):
    """The tokenization of a model.

    Args:
        causal_lm: a `keras_hub.models.CausalLM`.
        tokenizer: a `keras_hub` tokenizer; a pair of functions, from string
            to integers and back; or `"bytes"`: a token is a byte of UTF-8.
            Default: that of the model's preprocessor.
        add_start_token: bool. Default: what the model's preprocessor does if
            the tokenizer is its own; otherwise False.

    Raises:
        ValueError: if nothing says how text becomes tokens, or if there is no
            start token to add.
    """
    preprocessor = causal_lm.preprocessor
    if tokenizer is None and preprocessor is not None:
        tokenizer = preprocessor.tokenizer
        if add_start_token is None:
            # Some say so although their tokenizer has no start token.
            add_start_token = (
                getattr(preprocessor, "add_start_token", False)
                and _token_id(tokenizer, "start_token_id") is not None
            )
    tokenization = as_tokenization(tokenizer)
    if add_start_token and tokenization.start_token_id is None:
        raise ValueError(
            "`add_start_token` is expected to be False: the tokenizer has no "
            f"start token. Received: add_start_token={add_start_token}"
        )
    return dataclasses.replace(
        tokenization, adds_start_token=bool(add_start_token)
    )


def tokens_of_documents(documents, causal_lm, num_tokens, tokenizer=None):
    """The beginnings of documents, as tokens.

    Args:
        documents: strings, or sequences of integers.
        causal_lm: a `keras_hub.models.CausalLM`.
        num_tokens: int: how many of each.
        tokenizer: of strings, as in `tokenization_of`.

    Returns:
        int32 `[N, num_tokens]`.

    Raises:
        ValueError: for no documents, or some that are too short.
    """
    rows = list(documents)
    if any(isinstance(row, str) for row in rows):
        encode = tokenization_of(causal_lm, tokenizer).encode_with_start
        rows = [encode(x) if isinstance(x, str) else x for x in rows]
    short = [i for i, row in enumerate(rows) if len(row) < num_tokens]
    if short or not rows:
        which = ", ".join(f"{i} of {len(rows[i])} tokens" for i in short[:5])
        raise ValueError(
            f"`documents` are expected to have at least {num_tokens} tokens "
            "each: those to read, and the one after them. Join short ones, or "
            f"take a shorter `length`. Received: {len(rows)} documents"
            + (f", {len(short)} too short: {which}" if short else "")
        )
    return np.array([np.asarray(row)[:num_tokens] for row in rows], "int32")


def encode_pair(encode, context, continuation):
    """Tokens of a context, and of what follows it in the same text.

    The tokens of the continuation are those of the whole text from where the
    context alone ends, the rule of lm-evaluation-harness.

    Args:
        encode: a function from a string to a list of ints.
        context: a string.
        continuation: a string, with the white space before it.
    """
    whole = encode(context + continuation)
    context = encode(context)
    return context, whole[len(context) :]


def as_tokenization(tokenizer):
    """The tokenization of a tokenizer, as in `tokenization_of`."""
    if tokenizer == "bytes":
        return Tokenization(_encode_bytes, _decode_bytes)
    if isinstance(tokenizer, (tuple, list)) and len(tokenizer) == 2:
        encode, decode = tokenizer
        return Tokenization(lambda text: _as_list(encode(text)), decode)
    if not callable(getattr(tokenizer, "detokenize", None)):
        raise ValueError(
            "`tokenizer` is expected to be a tokenizer of KerasHub, a pair of "
            "functions (encode, decode), or 'bytes'; it may be left out for a "
            f"model with a preprocessor. Received: tokenizer={tokenizer!r}"
        )
    end_tokens = (_token_id(tokenizer, name) for name in _END_TOKENS)
    return Tokenization(
        lambda text: _as_list(tokenizer(text)),
        lambda tokens: str(tokenizer.detokenize(tokens)),
        _token_id(tokenizer, "start_token_id"),
        tuple(token for token in end_tokens if token is not None),
    )


def _token_id(tokenizer, name):
    token = getattr(tokenizer, name, None)
    return None if token is None else int(token)


def _as_list(tokens):
    return np.asarray(tokens, "int64").tolist()


def _encode_bytes(text):
    return list(text.encode())


def _decode_bytes(tokens):
    return bytes(tokens).decode(errors="replace")
