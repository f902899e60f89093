"""Does a model know the last word of a passage? After LAMBADA."""

import dataclasses
import json
import math
import pathlib
import re

from keras_sa.evaluation import scoring
from keras_sa.evaluation import tokenization

_LAST_WORD = re.compile(r"\s+\S+\s*$")


@dataclasses.dataclass(frozen=True)
class LastWordResult:
    """How well last words are predicted, from `evaluate_last_words`.

    Attributes:
        num_words: int: how many passages there were.
        num_correct: int: words all of whose tokens are the most probable.
        total_loss: float: the sum of the negative log-likelihoods of the
            words, in nats.
    """

    num_words: int
    num_correct: int
    total_loss: float

    @property
    def accuracy(self):
        """The share of words that greedy decoding writes."""
        return self.num_correct / self.num_words

    @property
    def perplexity(self):
        """Per word, not per token: exp(total loss / number of words)."""
        return math.exp(self.total_loss / self.num_words)


def read_passages(path):
    """Passages of a local file.

    Args:
        path: a file in UTF-8. If its name ends in `.jsonl`, each line is an
            object with a string `"text"`; otherwise each line is a passage.
            Empty lines are left out.

    Returns:
        A list of strings.

    Raises:
        ValueError: for a line of a `.jsonl` file without a text.
    """
    path = pathlib.Path(path)
    lines = enumerate(path.read_text("utf-8").split("\n"), start=1)
    lines = [(number, line) for number, line in lines if line.strip()]
    if path.suffix != ".jsonl":
        return [line for _, line in lines]
    return [_text_of(line, f"{path.name}:{number}") for number, line in lines]


def _text_of(line, place):
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(
            "Each line of a .jsonl file is expected to be an object with a "
            f'string "text". Received: {line!r} in {place}'
        )
    return text


def evaluate_last_words(
    model, passages, *, tokenizer=None, add_start_token=None, batch_size=None
):
    """Accuracy and perplexity of the last words of passages.

    The last word is what follows the last white space. Its tokens are those
    that the whole passage has beyond the tokens of the text before that white
    space. It is right if each of them is the most probable one after those
    before it. Passages that are too long for the model are cut at their
    beginning.

    Args:
        model: a `keras_hub.models.CausalLM`, swapped or not; or a
            `TokenScorer` of one, which keeps what it compiled.
        passages: strings of at least two words, as `read_passages` returns.
        tokenizer: a tokenizer of KerasHub; a pair of functions, from a string
            to integers and back; or `"bytes"`: a token is a byte. Default:
            that of the model's preprocessor.
        add_start_token: whether a passage begins with the tokenizer's start
            token. Default: what the model's preprocessor does; False for
            another tokenizer.
        batch_size: passages at a time, of a model. Default: 8.

    Returns:
        A `LastWordResult`.

    Raises:
        ValueError: for no passages, a passage of one word, a model without a
            tokenizer, or a word that is too long for the model.

    Example:

    >>> import keras_hub
    >>> from keras_sa.evaluation import evaluate_last_words
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=256, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> causal_lm = keras_hub.models.Qwen3CausalLM(backbone)
    >>> passages = ["the window and the token", "a layer and a gate"]
    >>> result = evaluate_last_words(causal_lm, passages, tokenizer="bytes")
    >>> result.num_words, result.accuracy
    (2, 0.0)

    Reference:
        The LAMBADA dataset, https://arxiv.org/abs/1606.06031
    """
    scorer = scoring.as_scorer(model, batch_size)
    encode = tokenization.tokenization_of(
        scorer.causal_lm, tokenizer, add_start_token
    ).encode_with_start
    pairs = [_encode_passage(encode, passage) for passage in passages]
    if not pairs:
        raise ValueError(
            "`passages` is expected to hold a passage. Received: none"
        )
    words = scorer.score_continuations(pairs)
    return LastWordResult(
        num_words=len(words),
        num_correct=sum(is_greedy for _, is_greedy in words),
        total_loss=-math.fsum(log_probability for log_probability, _ in words),
    )


def _encode_passage(encode, passage):
    """Tokens of a passage: before its last word, and of that."""
    match = _LAST_WORD.search(passage)
    context = passage[: match.start()] if match else ""
    if not context:
        raise ValueError(
            "A passage is expected to have at least two words. "
            f"Received: {passage!r}"
        )
    return tokenization.encode_pair(
        encode, context, passage[match.start() :].rstrip()
    )
