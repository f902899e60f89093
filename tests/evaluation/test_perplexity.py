"""Every token is predicted once, from the context that is claimed."""

import math

import numpy as np
import pytest
import tiny_models

from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import evaluate_documents
from keras_sa.evaluation.perplexity import cut_windows

LENGTH = 6
START = 3


@pytest.fixture(scope="module")
def documents():
    return tiny_models.random_sequences([3, 15, 1, 0])


@pytest.mark.parametrize(
    "num_tokens, stride, expected",
    [
        (1, 4, []),
        (4, 4, [("0123", 3)]),
        (5, 4, [("01234", 4)]),
        (6, 4, [("01234", 4), ("12345", 1)]),
        (10, 4, [("01234", 4), ("45678", 4), ("56789", 1)]),
        (10, 2, [("01234", 4), ("23456", 2), ("45678", 2), ("56789", 1)]),
        (7, 1, [("01234", 4), ("12345", 1), ("23456", 1)]),
    ],
)
def test_windows(num_tokens, stride, expected):
    """Windows of 4 tokens, and the one that follows them."""
    windows = cut_windows("0123456789"[:num_tokens], 4, stride)
    assert list(windows) == expected


def losses_by_hand(causal_lm, cases):
    """The loss of each token of documents after so many tokens before it.

    Args:
        cases: pairs of a document and the numbers of tokens before each of
            its tokens but the first.
    """
    before, targets = [], []
    for document, contexts in cases:
        for target, context in enumerate(contexts, start=1):
            before.append(document[target - context : target])
            targets.append(document[target])
    log_softmax = tiny_models.log_softmax(causal_lm, *tiny_models.pad(before))
    last = [len(tokens) - 1 for tokens in before]
    return -log_softmax[np.arange(len(targets)), last, targets]


# Tokens before each of the 14 targets, with windows of 6.
DISJOINT = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 5, 6]
HALVES = [1, 2, 3, 4, 5, 6, 4, 5, 6, 4, 5, 6, 5, 6]
ONE_BY_ONE = [1, 2, 3, 4, 5, *[6] * 9]


@pytest.mark.parametrize(
    "stride, contexts", [(None, DISJOINT), (3, HALVES), (1, ONE_BY_ONE)]
)
def test_loss_is_the_total_by_hand(
    causal_lm, scorer, documents, stride, contexts
):
    result = evaluate_documents(scorer, documents, LENGTH, stride=stride)
    short, long = documents[:2]
    losses = losses_by_hand(causal_lm, [(short, [1, 2]), (long, contexts)])
    assert result.num_tokens == 16
    assert result.total_loss == pytest.approx(losses.sum(), rel=1e-6)
    assert result.loss == result.total_loss / 16
    # The mean of the documents' perplexities is another number.
    assert result.perplexity == pytest.approx(math.exp(losses.mean()))
    assert (result.length, result.stride) == (LENGTH, stride or LENGTH)
    assert_buckets(result, losses, np.array([1, 2, *contexts]))


def assert_buckets(result, losses, contexts):
    """4 buckets over 6 tokens: 1 and 2, 3, 4 and 5, 6."""
    bounds = [(1, 2), (3, 3), (4, 5), (6, 6)]
    assert len(result.by_context) == 4
    for (low, high), bucket in zip(bounds, result.by_context):
        inside = (contexts >= low) & (contexts <= high)
        assert (bucket.min_context, bucket.max_context) == (low, high)
        assert bucket.num_tokens == inside.sum()
        expected = losses[inside].sum()
        assert bucket.total_loss == pytest.approx(expected, rel=1e-6)


def test_a_start_token_makes_the_first_token_a_target(scorer, documents):
    result = evaluate_documents(scorer, documents, LENGTH, start_token_id=START)
    with_start = [[START, *document] for document in documents if document]
    expected = evaluate_documents(scorer, with_start, LENGTH)
    assert result == expected
    assert result.num_tokens == 3 + 15 + 1


def test_a_model_and_a_scorer_give_the_same(causal_lm, scorer, documents):
    result = evaluate_documents(causal_lm, documents, LENGTH, batch_size=1)
    expected = evaluate_documents(scorer, documents, LENGTH)
    assert result.total_loss == pytest.approx(expected.total_loss, rel=1e-6)


def test_buckets_without_tokens_have_no_loss(scorer):
    result = evaluate_documents(scorer, [[1, 2]], LENGTH, position_buckets=2)
    first, last = result.by_context
    assert (first.num_tokens, last.num_tokens) == (1, 0)
    assert math.isnan(last.loss)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"length": 0}, "length=0"),
        ({"stride": 7}, "at most `length`, 6. Received: stride=7"),
        ({"stride": 0}, "stride=0"),
        ({"position_buckets": 7}, "position_buckets=7"),
        ({"start_token_id": 32}, "from 0 to 31"),
        ({"documents": [[1], []]}, "token to predict"),
        ({"documents": [[1.5, 2.5]]}, "integers"),
        ({"batch_size": 2}, "its own, 3. Received: batch_size=2"),
    ],
)
def test_bad_input(scorer, documents, options, message):
    arguments = {"documents": documents, "length": LENGTH, **options}
    with pytest.raises(ValueError, match=message):
        evaluate_documents(scorer, **arguments)


def test_windows_fit_the_scorer(causal_lm):
    scorer = TokenScorer(causal_lm, max_length=4)
    with pytest.raises(ValueError, match="scorer, 4. Received: length=5"):
        evaluate_documents(scorer, [[1, 2]], 5)


def test_bad_batch_size_of_a_model(causal_lm):
    with pytest.raises(ValueError, match="batch_size=0"):
        evaluate_documents(causal_lm, [[1, 2]], LENGTH, batch_size=0)
