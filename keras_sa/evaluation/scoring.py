"""Log-probabilities of given tokens under a KerasHub model.

Letters: `N` sequences, `n` tokens of one, `B` sequences of a batch, `T` tokens
of a padded one that the model reads, `V` vocabulary.
"""

import collections
import typing

import keras_hub
import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa import backend
from keras_sa.hub import current_swap

BATCH_SIZE = 8
_SHORTEST = 16  # padded length
_KNOWN_INPUTS = {"token_ids", "padding_mask", "position_ids"}


class TokenScores(typing.NamedTuple):
    """What a model says of tokens, each after those before it.

    Attributes:
        log_probabilities: float32: natural logarithms.
        is_greedy: bool: whether the token is the most probable one.
    """

    log_probabilities: np.ndarray
    is_greedy: np.ndarray


class TokenScorer:
    """Scores tokens by the tokens before them, under any KerasHub model.

    The model runs compiled, without dropout, over right-padded batches of a
    few shapes: lengths are powers of two, and batches are filled up. Left and
    right padding, the batch size and the order of sequences change nothing.
    No `[B, T, V]` array leaves the device. A swap of the model's attention, or
    its end, is noticed; so are LoRA weights and quantization.

    Args:
        causal_lm: a `keras_hub.models.CausalLM` of text, swapped or not. Its
            preprocessor is not used.
        batch_size: `B`, int.
        max_length: tokens that the model reads at once, at most. Default: as
            many as its backbone has positions for, if it has a
            `max_sequence_length`; otherwise any number.

    Raises:
        ValueError: for anything but a model of text alone.

    Example:

    >>> import keras_hub
    >>> from keras_sa.evaluation import TokenScorer
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> scorer = TokenScorer(keras_hub.models.Qwen3CausalLM(backbone))
    >>> scores = scorer([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    >>> scores.log_probabilities.shape
    (2, 4)
    """

    def __init__(self, causal_lm, batch_size=BATCH_SIZE, max_length=None):
        _check_causal_lm(causal_lm)
        self.causal_lm = causal_lm
        self.batch_size = _validation.check_positive_int(
            "batch_size", batch_size
        )
        self.max_length = _max_length(causal_lm.backbone, max_length)
        self._function = None
        self._compiled_for = None

    def __call__(self, token_ids, padding_mask=None):
        """Scores the rows of an array.

        Args:
            token_ids: integers `[N, n]`.
            padding_mask: `[N, n]`, true or 1 for tokens, which stand together
                in a row; padding is before or after them. Default: all are
                tokens.

        Returns:
            `TokenScores` of arrays `[N, n - 1]`: entry `i` is about token
            `i + 1`. Where that or token `i` is padding: 0 and False.

        Raises:
            ValueError: for tokens that are no integers, or not in the
                vocabulary, too long rows, or gaps in a row.
        """
        token_ids = np.asarray(token_ids)
        is_token = _check_rows(token_ids, padding_mask)
        scores = self.score_sequences(
            [row[mask] for row, mask in zip(token_ids, is_token)]
        )
        is_target = is_token[:, 1:] & is_token[:, :-1]
        log_probabilities = np.zeros(is_target.shape, "float32")
        is_greedy = np.zeros(is_target.shape, bool)
        if scores:
            columns = [np.concatenate(column) for column in zip(*scores)]
            log_probabilities[is_target], is_greedy[is_target] = columns
        return TokenScores(log_probabilities, is_greedy)

    def score_sequences(self, sequences):
        """Scores sequences of any lengths.

        Args:
            sequences: `N` sequences of integers `[n]`, each with its own `n`.

        Returns:
            A list of `N` `TokenScores` of arrays `[n - 1]`: entry `i` is
            about token `i + 1`.

        Raises:
            ValueError: for tokens that are no integers, or not in the
                vocabulary, and for more than `max_length + 1` of them.
        """
        sequences = [self._check_sequence(tokens) for tokens in sequences]
        scores = [_no_scores() for _ in sequences]
        function = self._compiled()
        for length, members in self._batches(sequences):
            rows = [sequences[index] for index in members]
            for index, of_one in zip(
                members, self._score_batch(function, rows, length)
            ):
                scores[index] = of_one
        return scores

    def score_continuations(self, pairs):
        """Scores sequences after others, as a whole.

        What is too long for the model is cut at the beginning.

        Args:
            pairs: two lists of integers each: the tokens of a context, and
                those of what follows it.

        Returns:
            For each pair the float log-probability of the continuation, and
            whether each of its tokens is the most probable one.

        Raises:
            ValueError: as `score_continuation_tokens`.
        """
        return [
            (
                float(scores.log_probabilities.sum(dtype="float64")),
                bool(scores.is_greedy.all()),
            )
            for scores in self.score_continuation_tokens(pairs)
        ]

    def score_continuation_tokens(self, pairs):
        """Scores each token of sequences after others.

        Args:
            pairs: as in `score_continuations`.

        Returns:
            A list of `TokenScores` of arrays `[m]`, for the `m` tokens of each
            continuation.

        Raises:
            ValueError: for an empty list, a continuation of more than
                `max_length` tokens, or tokens as in `score_sequences`.
        """
        scores = self.score_sequences([self._join(*pair) for pair in pairs])
        return [
            TokenScores(*(x[-len(continuation) :] for x in of_pair))
            for of_pair, (_, continuation) in zip(scores, pairs)
        ]

    def _join(self, context, continuation):
        if len(context) == 0 or len(continuation) == 0:
            raise ValueError(
                "Context and continuation are expected to have a token each. "
                f"Received: {len(context)} and {len(continuation)} tokens"
            )
        tokens = [*context, *continuation]
        if self.max_length is None:
            return tokens
        if len(continuation) > self.max_length:
            raise ValueError(
                "A continuation is expected to have at most as many tokens as "
                f"the model reads at once, {self.max_length}. "
                f"Received: {len(continuation)} tokens"
            )
        return tokens[-(self.max_length + 1) :]

    def _check_sequence(self, tokens):
        tokens = np.asarray(tokens)
        if tokens.size == 0:
            return np.zeros(0, "int32")
        if tokens.ndim != 1:
            raise ValueError(
                "A sequence is expected to have one dimension: its tokens. "
                f"Received: an array of shape {tokens.shape}"
            )
        _check_in_vocabulary(tokens, self.causal_lm.backbone)
        if self.max_length is not None and len(tokens) > self.max_length + 1:
            raise ValueError(
                f"A sequence is expected to have at most {self.max_length + 1} "
                f"tokens: the model reads max_length={self.max_length} at once "
                "and predicts one more. Cut it, or take a longer max_length. "
                f"Received: a sequence of {len(tokens)} tokens"
            )
        return tokens.astype("int32")

    def _compiled(self):
        """The scoring function, of the model as it is now."""
        state = state_of(self.causal_lm)
        if self._compiled_for != state:
            self._compiled_for = state
            self._function = backend.compile_inference(
                self.causal_lm, self._score_on_device
            )
        return self._function

    def _score_on_device(self, inputs, targets):
        """Log-probabilities and greediness of targets `[B, T]`."""
        # In half precision, a logarithm of thousands of terms is rounded.
        logits = ops.cast(self.causal_lm(inputs, training=False), "float32")
        of_targets = ops.take_along_axis(logits, targets[..., None], axis=-1)
        normalizer = ops.logsumexp(logits, axis=-1)
        best = ops.cast(ops.argmax(logits, axis=-1), targets.dtype)
        return of_targets[..., 0] - normalizer, ops.equal(best, targets)

    def _batches(self, sequences):
        """Padded lengths and indices of the sequences of each batch."""
        members = collections.defaultdict(list)
        for index, tokens in enumerate(sequences):
            if len(tokens) > 1:
                members[self._padded_length(len(tokens) - 1)].append(index)
        # Memory that does not suffice is noticed at once.
        for length in sorted(members, reverse=True):
            for first in range(0, len(members[length]), self.batch_size):
                yield length, members[length][first : first + self.batch_size]

    def _padded_length(self, length):
        padded = max(_SHORTEST, 1 << (length - 1).bit_length())
        return min(padded, self.max_length or padded)

    def _score_batch(self, function, rows, length):
        """`TokenScores` of at most `B` sequences of up to `T + 1` tokens."""
        num_rows, num_fill = len(rows), self.batch_size - len(rows)
        rows = rows + [rows[0]] * num_fill
        tensors = {
            "token_ids": _pad([row[:-1] for row in rows], length),
            "padding_mask": _pad([np.ones(len(r) - 1) for r in rows], length),
            "position_ids": np.tile(np.arange(length), (len(rows), 1)),
            "targets": _pad([row[1:] for row in rows], length),
        }
        tensors = {
            name: ops.convert_to_tensor(x, "int32")
            for name, x in tensors.items()
        }
        targets = tensors.pop("targets")
        inputs = {name: tensors[name] for name in self.causal_lm.input}
        results = [
            ops.convert_to_numpy(x)[:num_rows]
            for x in function(inputs, targets)
        ]
        for row, *of_row in zip(rows, *results):
            yield TokenScores(*(x[: len(row) - 1] for x in of_row))


def state_of(causal_lm):
    """What a compiled function of a model holds for: swap and variables.

    A swap of the attention forgets what the model itself compiled, no more.
    """
    return current_swap(causal_lm), [id(x) for x in causal_lm.variables]


def as_scorer(model, batch_size=None):
    """The scorer itself, or a new one of a model.

    Raises:
        ValueError: if a scorer is to have another batch size than its own.
    """
    if not isinstance(model, TokenScorer):
        return TokenScorer(
            model, BATCH_SIZE if batch_size is None else batch_size
        )
    if batch_size not in (None, model.batch_size):
        raise ValueError(
            "`batch_size` is expected with a model only: a `TokenScorer` has "
            f"its own, {model.batch_size}. Received: batch_size={batch_size}"
        )
    return model


def _check_causal_lm(causal_lm):
    if not isinstance(causal_lm, keras_hub.models.CausalLM):
        raise ValueError(
            "`causal_lm` is expected to be a `keras_hub.models.CausalLM`. "
            f"Received: {causal_lm!r} of class {type(causal_lm).__name__!r}"
        )
    unknown = set(causal_lm.input) - _KNOWN_INPUTS
    if unknown:
        raise ValueError(
            "`causal_lm` is expected to be a model of text alone, with inputs "
            f"of {sorted(_KNOWN_INPUTS)}. "
            f"Received: a {type(causal_lm).__name__} with {sorted(unknown)}"
        )


def _max_length(backbone, max_length):
    longest = getattr(backbone, "max_sequence_length", None)
    if max_length is None:
        return longest
    _validation.check_positive_int("max_length", max_length)
    if longest is not None and max_length > longest:
        raise ValueError(
            f"`max_length` is expected to be at most {longest}: the backbone "
            "has no more positions (its `max_sequence_length`). "
            f"Received: max_length={max_length}"
        )
    return int(max_length)


def _check_in_vocabulary(tokens, backbone):
    if tokens.dtype.kind not in "iu":
        raise ValueError(
            "Tokens are expected to be integers. "
            f"Received: an array of dtype {tokens.dtype}"
        )
    size = backbone.vocabulary_size
    if tokens.min() < 0 or tokens.max() >= size:
        raise ValueError(
            f"Tokens are expected to be from 0 to {size - 1}: the model has a "
            f"vocabulary of {size}. Received: tokens from {tokens.min()} to "
            f"{tokens.max()}"
        )


def _check_rows(token_ids, padding_mask):
    """Which entries of `[N, n]` are tokens."""
    if token_ids.ndim != 2:
        raise ValueError(
            "`token_ids` is expected to have shape [N, n]. "
            f"Received: token_ids.shape={token_ids.shape}"
        )
    if padding_mask is None:
        return np.ones(token_ids.shape, bool)
    padding_mask = np.asarray(padding_mask)
    _validation.check_mask_dtype("padding_mask", padding_mask)
    if padding_mask.shape != token_ids.shape:
        raise ValueError(
            "`padding_mask` is expected to have the shape of `token_ids`, "
            f"{token_ids.shape}. "
            f"Received: padding_mask.shape={padding_mask.shape}"
        )
    is_token = padding_mask.astype(bool)
    begins = np.diff(is_token.astype("int8"), axis=1, prepend=0) == 1
    if (begins.sum(axis=1) > 1).any():
        raise ValueError(
            "`padding_mask` is expected to have padding before and after the "
            "tokens of a row, not among them. "
            f"Received: padding_mask={padding_mask}"
        )
    return is_token


def _pad(rows, length):
    """Integers `[B, T]`, with zeros at the end."""
    return np.stack([np.pad(row, (0, length - len(row))) for row in rows])


def _no_scores():
    return TokenScores(np.zeros(0, "float32"), np.zeros(0, bool))
