"""The last word of a passage, found, tokenized and scored."""

import json
import math

import keras_hub
import numpy as np
import pytest
import tiny_models

from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import evaluate_last_words
from keras_sa.evaluation import read_passages

PASSAGES = ["a window and a gate", "one  token,\tand more tokens ", "b c"]
# What follows the text before the last word, to the byte.
WORDS = [" gate", " tokens", " c"]


@pytest.fixture(scope="module")
def of_bytes():
    model = tiny_models.build("qwen3", vocabulary_size=256)
    return TokenScorer(model, batch_size=3)


def losses_by_hand(causal_lm, passages, words):
    """For each word the loss, and whether all of its tokens are greedy."""
    rows = [list(passage.strip().encode()) for passage in passages]
    log_softmax = tiny_models.log_softmax(causal_lm, *tiny_models.pad(rows))
    for row, word, of_row in zip(rows, words, log_softmax):
        targets = np.arange(len(row) - len(word.encode()), len(row))
        tokens = np.array(row)[targets]
        yield (
            -of_row[targets - 1, tokens].sum(),
            bool((of_row[targets - 1].argmax(-1) == tokens).all()),
        )


def test_losses_by_hand(of_bytes):
    result = evaluate_last_words(of_bytes, PASSAGES, tokenizer="bytes")
    losses, _ = zip(*losses_by_hand(of_bytes.causal_lm, PASSAGES, WORDS))
    assert result.num_words == 3
    assert result.total_loss == pytest.approx(sum(losses), rel=1e-6)
    # Per word, however many tokens it has.
    expected = pytest.approx(np.mean(losses), rel=1e-6)
    assert math.log(result.perplexity) == expected


@pytest.fixture(scope="module")
def sure_of_gate():
    """A model of bytes in which each byte of `x gate` makes the next."""
    model = tiny_models.build(
        "qwen3", vocabulary_size=256, tie_word_embeddings=False
    )
    embedding = model.backbone.token_embedding
    vectors = np.random.default_rng(0).normal(size=(256, 16))
    # So long that what the layers add to them is nothing.
    embedding.embeddings.assign(1e4 * vectors)
    reverse = np.zeros((16, 256))
    for before, after in zip(b"x gat", b" gate"):
        reverse[:, after] = vectors[before]
    embedding.reverse_embeddings.assign(reverse)
    return TokenScorer(model, batch_size=4)


def test_only_words_that_are_greedy_throughout_are_right(sure_of_gate):
    # Of the last, the space is not: it is a part of the word.
    passages = ["xx gate", "x gat", "x gaze", "a gate"]
    words = [" gate", " gat", " gaze", " gate"]
    by_hand = losses_by_hand(sure_of_gate.causal_lm, passages, words)
    assert [right for _, right in by_hand] == [True, True, False, False]
    result = evaluate_last_words(sure_of_gate, passages, tokenizer="bytes")
    assert result.num_correct == 2
    assert result.accuracy == 0.5


def bytes_as_characters():
    """The characters that byte-level BPE writes bytes as."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in sorted(shown)] + [
        chr(256 + index) for index in range(len(hidden))
    ]


@pytest.fixture(scope="module")
def with_preprocessor():
    """A tokenizer that merges a space with the word after it."""
    merges = ["\u0120 g", "a t", "\u0120g at", "\u0120gat e"]
    words = [merge.replace(" ", "") for merge in merges]
    names = [*bytes_as_characters(), *words, "<|endoftext|>"]
    tokenizer = keras_hub.models.GPT2Tokenizer(
        vocabulary={name: index for index, name in enumerate(names)},
        merges=merges,
    )
    return tiny_models.build(
        "gpt2",
        preprocessor=keras_hub.models.GPT2CausalLMPreprocessor(tokenizer),
        vocabulary_size=len(names),
        max_sequence_length=16,
    )


def test_the_word_s_tokens_are_those_within_the_passage(with_preprocessor):
    tokenizer = with_preprocessor.preprocessor.tokenizer
    context = [tokenizer.start_token_id, *np.asarray(tokenizer("a big"))]
    (word,) = np.asarray(tokenizer(" gate"))  # one token, with its space
    log_softmax = tiny_models.log_softmax(with_preprocessor, [context])
    result = evaluate_last_words(with_preprocessor, ["a big gate"])
    expected = -log_softmax[0, -1, word]
    assert result.total_loss == pytest.approx(expected, rel=1e-5)


def test_start_token_can_be_left_out(with_preprocessor):
    passages = ["a big gate"]
    tokenizer = with_preprocessor.preprocessor.tokenizer
    without = evaluate_last_words(
        with_preprocessor, passages, add_start_token=False
    )
    assert without == evaluate_last_words(
        with_preprocessor, passages, tokenizer=tokenizer
    )
    default = evaluate_last_words(with_preprocessor, passages)
    assert default.total_loss != pytest.approx(without.total_loss, rel=1e-3)


def test_pair_of_functions(of_bytes):
    tokenizer = (lambda text: np.frombuffer(text.encode(), "uint8"), bytes)
    result = evaluate_last_words(of_bytes, PASSAGES, tokenizer=tokenizer)
    assert result == evaluate_last_words(of_bytes, PASSAGES, tokenizer="bytes")


def test_long_passages_are_cut_at_their_beginning(of_bytes):
    short = TokenScorer(of_bytes.causal_lm, batch_size=3, max_length=12)
    cut = [passage.strip()[-13:] for passage in PASSAGES]
    result = evaluate_last_words(short, PASSAGES, tokenizer="bytes")
    expected = evaluate_last_words(of_bytes, cut, tokenizer="bytes")
    assert result.total_loss == pytest.approx(expected.total_loss, rel=1e-5)


def test_passages_of_files(tmp_path):
    text = tmp_path / "passages.txt"
    text.write_text("first line\n\n  \nsecond \u00fc line", "utf-8")
    assert read_passages(text) == ["first line", "second \u00fc line"]
    # A line separator of Unicode ends no line of JSON.
    passages = ["first\nof two lines", "sec\u2028ond"]
    lines = [json.dumps({"text": x}, ensure_ascii=False) for x in passages]
    path = tmp_path / "passages.jsonl"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    assert read_passages(path) == passages


@pytest.mark.parametrize("line", ["no json", '{"txt": "a"}', '["a"]', "3"])
def test_lines_without_a_text(tmp_path, line):
    path = tmp_path / "passages.jsonl"
    path.write_text('{"text": "a b"}\n' + line)
    with pytest.raises(ValueError, match="passages.jsonl:2"):
        read_passages(path)


@pytest.mark.parametrize(
    "passages, options, message",
    [
        ([], {}, "Received: none"),
        (["word"], {}, "two words. Received: 'word'"),
        (["  word "], {}, "two words"),
        (["a b"], {"tokenizer": None}, "tokenizer=None"),
        (["a b"], {"tokenizer": "words"}, "tokenizer='words'"),
        (["a b"], {"add_start_token": True}, "no start token"),
        (["a b"], {"batch_size": 2}, "batch_size=2"),
    ],
)
def test_bad_input(of_bytes, passages, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_last_words(
            of_bytes, passages, **{"tokenizer": "bytes", **options}
        )
