"""Perplexity of documents of any length, read in windows.

Letters: `n` tokens of a document, `L` tokens of a window, `K` buckets.
"""

import dataclasses
import math

import numpy as np

from keras_sa import _validation
from keras_sa.evaluation import scoring


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """The negative log-likelihood of tokens.

    Attributes:
        total_loss: float: its sum over the tokens, in nats.
        num_tokens: int: how many tokens were predicted.
    """

    total_loss: float
    num_tokens: int

    @property
    def loss(self):
        """Nats per token; nan of no tokens."""
        return (
            self.total_loss / self.num_tokens if self.num_tokens else math.nan
        )

    @property
    def perplexity(self):
        """exp(total loss / number of tokens)."""
        return math.exp(self.loss)


@dataclasses.dataclass(frozen=True)
class ContextLoss(TokenLoss):
    """The loss of the tokens with about as many tokens before them.

    Attributes:
        min_context: int: the fewest tokens that the model had read of the
            window.
        max_context: int: the most of them.
    """

    min_context: int
    max_context: int


@dataclasses.dataclass(frozen=True)
class DocumentLoss(TokenLoss):
    """The loss of documents, from `evaluate_documents`.

    Attributes:
        length: int: tokens that the model read at once, at most.
        stride: int: tokens that a window predicts, at most, after the first
            one of a document.
        by_context: `K` times `ContextLoss`, in order. The last is the last
            `1 / K` of the context.
    """

    length: int
    stride: int
    by_context: tuple[ContextLoss, ...]


def evaluate_documents(
    model,
    documents,
    length,
    *,
    stride=None,
    start_token_id=None,
    position_buckets=4,
    batch_size=None,
):
    """Perplexity of documents, with a stated window and stride.

    The model reads a document in windows of `length` tokens. The first window
    predicts all that it can: the token after each of its own. The next ones
    predict `stride` further tokens each. The last one is moved back as far as
    it is short, so that its tokens have as much before them as any. Every
    token of a document is predicted once, but for the first one, unless there
    is a start token before it. So with `stride == length` a token has what
    its window holds before it, from 1 to `length` tokens, and with a smaller
    stride at least `length - stride + 1` after the first window.

    Perplexity is exp(total loss / tokens) over all documents, never a mean of
    perplexities; sums are in float64.

    Args:
        model: a `keras_hub.models.CausalLM`, swapped or not; or a
            `TokenScorer` of one, which keeps what it compiled.
        documents: sequences of integers `[n]`, each with its own `n`.
            Documents without a token to predict are left out.
        length: `L`, tokens that the model reads at once.
        stride: from 1 to `length`. Default: `length`. The cost is about
            `length / stride` times that.
        start_token_id: int: put before every document, and never predicted.
            Models that were trained with one need it.
        position_buckets: `K`, up to `length`: in how many equal parts of the
            window the loss is told. A token is in a part by how many tokens
            of its window are before it.
        batch_size: windows at a time, of a model. Default: 8.

    Returns:
        A `DocumentLoss`.

    Raises:
        ValueError: for options out of range, tokens that are not in the
            vocabulary, or if there is no token to predict.

    Example:

    >>> import keras_hub
    >>> from keras_sa.evaluation import evaluate_documents
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> causal_lm = keras_hub.models.Qwen3CausalLM(backbone)
    >>> documents = [[1, 2, 3, 4, 5] * 10, [6, 7, 8]]
    >>> result = evaluate_documents(causal_lm, documents, 16, stride=8)
    >>> result.num_tokens
    51
    >>> result.loss == result.total_loss / 51
    True
    >>> [(c.min_context, c.max_context) for c in result.by_context]
    [(1, 4), (5, 8), (9, 12), (13, 16)]

    Reference:
        https://huggingface.co/docs/transformers/perplexity
    """
    length = _validation.check_positive_int("length", length)
    stride = _check_up_to(
        "stride", length if stride is None else stride, length
    )
    _check_up_to("position_buckets", position_buckets, length)
    scorer = scoring.as_scorer(model, batch_size)
    _check_fits(scorer, length)
    if scorer is not model:
        scorer.max_length = length  # nor are windows padded any further
    windows = [
        window
        for document in documents
        for window in cut_windows(
            _with_start(document, start_token_id), length, stride
        )
    ]
    if not windows:
        raise ValueError(
            "`documents` are expected to hold a token to predict: one with "
            "another, or the start token, before it. "
            "Received: none with enough tokens"
        )
    scores = scorer.score_sequences([tokens for tokens, _ in windows])
    targets = [num_targets for _, num_targets in windows]
    return _sum(scores, targets, length, stride, position_buckets)


def cut_windows(tokens, length, stride):
    """Windows over a document, each with the number of tokens it predicts.

    Args:
        tokens: `[n]`, of which the first is not predicted.
        length: `L`.
        stride: tokens that windows after the first predict.

    Yields:
        Up to `L + 1` tokens, and how many of the last of them are targets.
    """
    last = len(tokens) - 1
    end = min(length, last)
    if end > 0:
        yield tokens[: end + 1], end
    while end < last:
        num_targets = min(stride, last - end)
        end += num_targets
        yield tokens[end - length : end + 1], num_targets


def _with_start(document, start_token_id):
    document = np.asarray(document)
    if start_token_id is None or document.size == 0:
        return document
    return np.concatenate([[start_token_id], document])


def _sum(scores, targets, length, stride, num_buckets):
    """The `DocumentLoss` of the last targets of each window."""
    losses, buckets = [], []
    for window, num_targets in zip(scores, targets):
        last = len(window.log_probabilities)
        context = np.arange(last - num_targets, last) + 1
        losses.append(-window.log_probabilities[-num_targets:])
        buckets.append((context - 1) * num_buckets // length)
    losses = np.concatenate(losses).astype("float64")
    bucket = np.concatenate(buckets)
    total = np.bincount(bucket, losses, num_buckets)
    count = np.bincount(bucket, minlength=num_buckets)
    # The first context of each bucket, and one beyond the last.
    edges = [-(-k * length // num_buckets) + 1 for k in range(num_buckets + 1)]
    by_context = tuple(
        ContextLoss(float(total[k]), int(count[k]), edges[k], edges[k + 1] - 1)
        for k in range(num_buckets)
    )
    return DocumentLoss(
        float(losses.sum()), len(losses), length, stride, by_context
    )


def _check_up_to(name, value, length):
    value = _validation.check_positive_int(name, value)
    if value > length:
        raise ValueError(
            f"`{name}` is expected to be at most `length`, {length}. "
            f"Received: {name}={value}"
        )
    return value


def _check_fits(scorer, length):
    if scorer.max_length is not None and length > scorer.max_length:
        raise ValueError(
            "`length` is expected to be at most the `max_length` of the "
            f"scorer, {scorer.max_length}. Received: length={length}"
        )
