"""Prompts hold what they say, and answers are graded as they are."""

import math
import re

import numpy as np
import pytest

from keras_sa import evaluation
from keras_sa.evaluation import shots
from keras_sa.evaluation.prompts import Prompt
from tests.hub import models

HAYSTACK = " ".join(f"Sentence {i} is about nothing." for i in range(400))
LENGTH = 700
OPTIONS = {"tokenizer": "bytes", "seed": 4}
TEXT = {"haystack": HAYSTACK, **OPTIONS}
TASKS = {
    "passkey": lambda n=LENGTH, **x: evaluation.passkey(6, n, **TEXT, **x),
    "needles": lambda n=LENGTH, **x: evaluation.needles(6, n, **TEXT, **x),
    "values": lambda n=LENGTH, **x: evaluation.needles(
        6, n, num_values=3, num_needles=2, **TEXT, **x
    ),
    "variables": lambda n=LENGTH, **x: evaluation.variable_tracking(
        6, n, **TEXT, **x
    ),
    "words": lambda n=LENGTH, **x: evaluation.frequent_words(
        6, n, num_answers=2, **OPTIONS, **x
    ),
}
each_task = pytest.mark.parametrize("name", TASKS)


@each_task
@pytest.mark.parametrize("question", ["end", "start"])
def test_prompts_are_as_long_as_fits(name, question):
    for prompt in TASKS[name](question=question):
        size = len(prompt.context + prompt.answer)
        assert LENGTH - 40 < size <= LENGTH
        assert prompt.answer.startswith(" ")
        first, *_, last = prompt.context.split("\n")
        assert ("?" in first) == (question == "start")
        assert ("?" in last) == (question == "end")


@each_task
def test_they_are_the_same_again_and_differ(name):
    prompts = TASKS[name]()
    assert prompts == TASKS[name]()
    assert len({prompt.context for prompt in prompts}) == len(prompts)


def body(prompt):
    return prompt.context.split("\n")[1]


def test_the_passkey_is_there_once_and_anywhere():
    prompts = evaluation.passkey(60, LENGTH, **TEXT)
    depths = []
    for prompt in prompts:
        [found] = re.finditer(
            r"The pass key is (\d{5})\. Remember it\. \1 is the pass key\.",
            body(prompt),
        )
        assert prompt.answer == f" {found[1]}"
        depths.append(found.start() / len(body(prompt)))
    assert min(depths) < 0.1 and max(depths) > 0.8
    assert 0.3 < np.mean(depths) < 0.7
    # Filler starts at another place of the haystack each time.
    assert len({body(p).split(".")[1] for p in prompts}) > 20


def test_the_needle_that_is_asked_for():
    for prompt in TASKS["needles"]():
        said = re.findall(r"The number of (\w+) is (\d{5})\.", body(prompt))
        assert len({key for key, _ in said}) == 4
        key = re.search(r"number of (\w+) is$", prompt.context)[1]
        assert prompt.answer == f" {dict(said)[key]}"


def test_all_values_are_the_answer_in_the_order_of_the_text():
    for prompt in TASKS["values"]():
        said = re.findall(r"The number of (\w+) is (\d{5})\.", body(prompt))
        assert len(said) == 6
        key = re.search(r"numbers of (\w+) are$", prompt.context)[1]
        expected = ", ".join(number for name, number in said if name == key)
        assert prompt.answer == f" {expected}"


def test_variables_are_handed_on():
    for prompt in TASKS["variables"]():
        said = re.findall(r"VAR (\w+) = (\w+)\.", body(prompt))
        assert len(said) == 2 * 4
        number = re.search(r"value (\d{5}) are$", prompt.context)[1]
        holders = []
        for name, source in said:  # a chain is in its order
            if source in (number, *holders):
                holders.append(name)
        assert prompt.answer == " " + ", ".join(holders) and len(holders) == 4


def test_the_most_frequent_words():
    for prompt in TASKS["words"]():
        words, counts = np.unique(body(prompt).split(), return_counts=True)
        order = np.argsort(counts)
        assert counts[order[-2]] == counts[order[-1]] == 10
        assert counts[order[-3]] <= 3
        expected = ", ".join(sorted(words[order[-2:]]))
        assert prompt.answer == f" {expected}"


@pytest.mark.parametrize("kind", shots.PAIRS)
def test_few_shots(kind):
    pairs = dict(shots.PAIRS[kind])
    assert len(pairs) == len(shots.PAIRS[kind]) > 50
    prompts = evaluation.few_shot(9, kind=kind, num_shots=12, seed=2)
    asked = set()
    for prompt in prompts:
        *lines, last = prompt.context.split("\n")
        said = dict(line.split(" -> ") for line in lines)
        assert len(said) == 12 and said.items() <= pairs.items()
        key = last.removesuffix(" ->")
        assert key not in said and prompt.answer == f" {pairs[key]}"
        asked.add(key)
    assert len(asked) > 4


def test_words_differ():
    assert len(set(shots.WORDS)) == len(shots.WORDS) > 60


def test_other_tokenizers_count_their_own_tokens():
    def encode(text):
        return [len(word) for word in text.split()]

    prompts = evaluation.passkey(
        2, 50, haystack=HAYSTACK, tokenizer=(encode, str), seed=1
    )
    for prompt in prompts:
        assert 40 < len(encode(prompt.context + prompt.answer)) <= 50


def test_grading():
    """Against the probabilities of the model itself."""
    model = models.build("qwen3", vocabulary_size=256, num_layers=1)
    prompts = [Prompt("abcdef gh", " x"), Prompt("some other", " yes")]
    result = evaluation.evaluate_prompts(model, prompts, tokenizer="bytes")
    total, right, num_right_tokens = 0.0, [], 0
    for prompt in prompts:
        tokens = np.array([[*(prompt.context + prompt.answer).encode()]])
        everything = {
            "token_ids": tokens.astype("int32"),
            "padding_mask": np.ones_like(tokens, bool),
        }
        logits = models.logits(model, everything)[0].astype("float64")
        first = len(prompt.context.encode())
        targets = tokens[0, first:]
        logits = logits[first - 1 : -1]
        total -= (
            logits[np.arange(len(targets)), targets]
            - np.log(np.exp(logits).sum(-1))
        ).sum()
        is_right = logits.argmax(-1) == targets
        right.append(is_right.all())
        num_right_tokens += is_right.sum()
    assert result.total_loss == pytest.approx(total, rel=1e-5)
    assert (result.num_prompts, result.num_tokens) == (2, 6)
    assert result.num_correct == sum(right)
    assert result.num_correct_tokens == num_right_tokens
    assert result.loss == pytest.approx(total / 6)


def test_the_right_answer_is_right():
    """Written by the model itself, greedily."""
    model = models.build("qwen3", vocabulary_size=256, num_layers=1)
    context = b"a prompt of bytes"
    inputs = {
        "token_ids": np.array([[*context, 0, 0, 0]], "int32"),
        "padding_mask": np.arange(len(context) + 3)[None] < len(context),
    }
    written = model.generate(inputs, stop_token_ids=None)["token_ids"][0, -3:]
    to_bytes = (
        lambda text: [ord(x) for x in text],
        lambda tokens: "".join(map(chr, tokens)),
    )
    answers = ["".join(map(chr, written)), "".join(map(chr, written[::-1] ^ 1))]
    result = evaluation.evaluate_prompts(
        model,
        [Prompt(context.decode(), answer) for answer in answers],
        tokenizer=to_bytes,
    )
    assert (result.num_correct, result.accuracy) == (1, 0.5)
    # Of the other answer, some tokens may be right by accident.
    assert 3 <= result.num_correct_tokens < 6
    assert result.token_accuracy == result.num_correct_tokens / 6


def test_the_interval():
    pytest.importorskip("scipy")
    result = evaluation.PromptResult(50, 40, 1.0, 50, 40)
    # Wilson's, by hand.
    z, n, p = 1.959964, 50, 0.8
    middle = p + z * z / (2 * n)
    reach = z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    ends = np.array([middle - reach, middle + reach]) / (1 + z * z / n)
    np.testing.assert_allclose(result.interval, ends, rtol=1e-5)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: TASKS["passkey"](90), "at least"),
        (lambda: TASKS["passkey"](10**5), "longer `haystack`"),
        (lambda: TASKS["passkey"](question="middle"), "question"),
        (lambda: TASKS["passkey"](num_digits=0), "num_digits"),
        (lambda: TASKS["needles"](num_needles=999), "num_needles"),
        (lambda: TASKS["variables"](num_hops=99), "num_chains"),
        (lambda: TASKS["words"](num_times=2), "num_times"),
        (lambda: TASKS["words"](10**4), "shorter length"),
        (lambda: evaluation.few_shot(1, kind="rivers", seed=1), "kind"),
        (lambda: evaluation.few_shot(1, num_shots=99, seed=1), "num_shots"),
        (lambda: evaluation.passkey(0, 99, **TEXT), "num_prompts"),
        (
            lambda: evaluation.passkey(
                1, 99, haystack=HAYSTACK, tokenizer="words", seed=1
            ),
            "tokenizer",
        ),
        (
            lambda: evaluation.evaluate_prompts(
                models.build("qwen3"), [], tokenizer="bytes"
            ),
            "prompts",
        ),
        (
            lambda: evaluation.evaluate_prompts(
                models.build("qwen3"), [Prompt("a", " b")]
            ),
            "tokenizer",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=f"(?s){words}.*Received: "):
        call()
