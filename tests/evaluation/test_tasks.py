"""The tasks ask what they say, and nothing but the source answers.

Letters: `N` examples, `n` tokens, `w` tokens of a window.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from keras_sa import evaluation

NUM_EXAMPLES = 1500
TEXT = b"It was the best of times, it was the worst of times, 1859. " * 9
BEFORE, BETWEEN, AFTER = b" Code ", b" is ", b"."
RECALL = {"vocabulary_size": 41, "num_pairs": 5, "num_queries": 3}
STRING_LENGTH = 6
NUM_QUESTION = len(BEFORE) + 2 + len(BETWEEN)


def recall_oracle(context):
    """What followed the last token when it came before."""
    (before,) = np.nonzero(context[:-1] == context[-1])
    return context[before[0] + 1] if len(before) else None


def copy_oracle(context):
    """The token of the string, which ends before filler and marker."""
    (marker,) = np.nonzero(context == 1)
    if not len(marker):
        return None
    (string,) = np.nonzero(context[: marker[0]])
    if not len(string):
        return None
    num_copied = len(context) - 1 - marker[0]
    place = string[-1] - (STRING_LENGTH - 1) + num_copied
    return context[place] if place >= 0 else None


def needle_oracle(context):
    """The value in the first sentence, if it is not the question."""
    characters = bytes(context.astype("uint8"))
    first, question = characters.find(BEFORE), characters.rfind(BEFORE)
    if first == question:
        return None
    num_answered = len(context) - question - NUM_QUESTION
    return context[first + NUM_QUESTION + num_answered]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task with small sizes, and how to solve it by reading."""

    make: Callable
    oracle: Callable
    chance: float

    def __call__(self, num_examples=NUM_EXAMPLES, length=80, seed=3, **changes):
        return self.make(num_examples, length, seed=seed, **changes)


TASKS = {
    "associative_recall": Task(
        functools.partial(evaluation.associative_recall, **RECALL),
        recall_oracle,
        1 / 20,
    ),
    "copy_at_distance": Task(
        functools.partial(
            evaluation.copy_at_distance,
            vocabulary_size=12,
            string_length=STRING_LENGTH,
        ),
        copy_oracle,
        1 / 10,
    ),
    "induction": Task(
        functools.partial(evaluation.induction, vocabulary_size=16),
        recall_oracle,
        1 / 15,
    ),
    "needle_in_text": Task(
        functools.partial(
            evaluation.needle_in_text,
            text=TEXT,
            sentence=(BEFORE, BETWEEN, AFTER),
            key_tokens=b"ABCDEF",
            value_tokens=b"0123456789",
            key_length=2,
            value_length=3,
        ),
        needle_oracle,
        1 / 10,
    ),
}
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
with_distances = pytest.mark.parametrize(
    "task", [TASKS[name] for name in list(TASKS)[:3]], ids=list(TASKS)[:3]
)


def questions_of(examples):
    """`(tokens up to the question, answer, distance)` of each."""
    for row, position in np.argwhere(examples.is_answer):
        yield (
            examples.token_ids[row, : position + 1],
            examples.targets[row, position],
            examples.distance[row, position],
        )


def share_of_right(examples, oracle, window_of):
    """Of an oracle that guesses where its window holds no answer."""
    rng = np.random.default_rng(0)
    alphabet = np.unique(examples.targets[examples.is_answer])
    right = []
    for context, answer, distance in questions_of(examples):
        window = window_of(distance, len(context))
        found = oracle(context[len(context) - window :])
        guess = rng.choice(alphabet) if found is None else found
        right.append(guess == answer)
    return np.mean(right)


def standard_error(share, count):
    return np.sqrt(share * (1 - share) / count)


@every_task
def test_whoever_reads_everything_is_always_right(task):
    examples = task(num_examples=300)
    everything = share_of_right(
        examples, task.oracle, lambda distance, length: length
    )
    assert everything == 1.0


@every_task
def test_whoever_reads_no_further_than_the_source_guesses(task):
    examples = task()
    assert examples.chance == pytest.approx(task.chance)
    count = examples.is_answer.sum()
    share = share_of_right(
        examples, task.oracle, lambda distance, length: distance
    )
    error = standard_error(task.chance, count)
    assert abs(share - task.chance) < 5 * error


@every_task
def test_no_place_in_the_window_tells_the_answer(task):
    """No token between source and question is the answer too often."""
    examples = task()
    rows, positions = np.nonzero(examples.is_answer)
    answers = examples.targets[rows, positions]
    distances = examples.distance[rows, positions]
    for offset in range(distances.max()):
        is_between = offset < distances
        if (count := is_between.sum()) < 200:
            continue
        tokens = examples.token_ids[rows, positions - offset]
        share = (tokens == answers)[is_between].mean()
        limit = task.chance + 5 * standard_error(task.chance, count)
        assert share < limit, offset


@every_task
def test_the_distance_leads_to_the_source(task):
    examples = task(num_examples=50)
    for context, answer, distance in questions_of(examples):
        assert context[len(context) - 1 - distance] == answer
    assert (examples.distance[~examples.is_answer] == -1).all()
    assert (examples.distance[examples.is_answer] > 0).all()


@every_task
def test_targets_are_the_next_tokens(task):
    """Apart from answers, which do not always stand in the sequence."""
    examples = task(num_examples=50)
    same = examples.targets[:, :-1] == examples.token_ids[:, 1:]
    assert (same | examples.is_answer[:, :-1]).all()
    for array in (examples.token_ids, examples.targets, examples.distance):
        assert array.dtype == "int32" and array.shape == (50, 80)


@pytest.mark.parametrize("name", ["copy_at_distance", "needle_in_text"])
def test_answers_follow_in_the_text(name):
    examples = TASKS[name](num_examples=50)
    np.testing.assert_array_equal(
        examples.targets[:, :-1], examples.token_ids[:, 1:]
    )


def test_answers_of_recall_do_not_follow():
    """The last question would be answered by what is left."""
    examples = TASKS["associative_recall"]()
    after = examples.token_ids[:, 1:][examples.is_answer[:, :-1]]
    assert (after == 0).all()


@every_task
def test_the_seed_decides(task):
    first, same, other = task(seed=3), task(seed=3), task(seed=4)
    np.testing.assert_array_equal(first.token_ids, same.token_ids)
    np.testing.assert_array_equal(first.distance, same.distance)
    assert (first.token_ids != other.token_ids).any()
    assert len(np.unique(first.token_ids, axis=0)) > 0.99 * NUM_EXAMPLES


@pytest.mark.parametrize("name", TASKS)
def test_the_examples_are_the_same_everywhere(name):
    """On every machine, and with every version of NumPy."""
    examples = TASKS[name](num_examples=20)
    tokens = examples.token_ids.astype("<i4").tobytes()
    distances = examples.distance.astype("<i4").tobytes()
    digest = hashlib.sha256(tokens + distances).hexdigest()
    assert digest[:16] == DIGESTS[name]


DIGESTS = {
    "associative_recall": "a3eb1dcf096fc5d3",
    "copy_at_distance": "042b848d05207823",
    "induction": "13149d008c68d305",
    "needle_in_text": "5a981be916fbf3a5",
}


@with_distances
@pytest.mark.parametrize("low, high", [(30, 46), (8, 40), (20, 38)])
def test_distances_are_those_asked_for(task, low, high):
    distance = task(distances=(low, high)).distance
    distance = distance[distance >= 0]
    # Of `associative_recall` every second.
    assert low <= distance.min() <= low + 1
    assert high - 2 <= distance.max() < high


@with_distances
def test_all_distances_come_without_a_choice(task):
    distance = task().distance
    assert len(np.unique(distance)) > 30


def pairs_of(examples):
    """Keys and values of the pairs, `[N, P]` each."""
    num_pairs = RECALL["num_pairs"]
    pairs = examples.token_ids[:, : 2 * num_pairs]
    return pairs[:, ::2], pairs[:, 1::2]


def test_keys_are_unique_and_asked_once():
    examples = TASKS["associative_recall"]()
    keys, _ = pairs_of(examples)
    for row, example_keys in enumerate(keys):
        assert len(set(example_keys)) == RECALL["num_pairs"]
        asked = examples.token_ids[row, examples.is_answer[row]]
        assert len(set(asked)) == RECALL["num_queries"]
        assert set(asked) <= set(example_keys)


def check_independent(rows, columns):
    """By the chi-squared statistic of the table of both."""
    _, rows = np.unique(rows, return_inverse=True)
    _, columns = np.unique(columns, return_inverse=True)
    counts = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(counts, (rows, columns), 1)
    expected = counts.sum(1)[:, None] * counts.sum(0) / counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_values_are_independent_of_keys():
    keys, values = pairs_of(TASKS["associative_recall"](num_examples=5000))
    check_independent(keys.ravel(), values.ravel())
    check_independent(values[:, 0], values[:, 1])


@pytest.mark.parametrize("distances", [None, (20, 40)])
def test_where_a_question_stands_does_not_tell_its_pair(distances):
    examples = TASKS["associative_recall"](5000, distances=distances)
    # One of each example: the others stand elsewhere and ask for others.
    first = examples.is_answer.argmax(axis=1)
    distance = examples.distance[np.arange(len(first)), first]
    check_independent(first, first - distance)


def test_the_token_of_an_induction_comes_twice():
    examples = TASKS["induction"]()
    asked = examples.token_ids[:, -1:]
    assert ((examples.token_ids == asked).sum(axis=1) == 2).all()
    assert (examples.is_answer.sum(axis=1) == 1).all()
    assert examples.is_answer[:, -1].all()


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_a_needle_lies_at_its_depth(depth):
    examples = TASKS["needle_in_text"](20, depths=(depth, depth))
    question = BEFORE + b"AB" + BETWEEN + b"012"
    num_text = 80 + 1 - 2 * len(question) - len(AFTER)
    for tokens in examples.token_ids:
        characters = bytes(tokens.astype("uint8"))
        place = characters.find(BEFORE)
        assert place == int(depth * num_text)
        end = place + len(question) + len(AFTER)
        assert characters[:place] in TEXT
        assert characters[end : characters.rfind(BEFORE)] in TEXT


def test_a_needle_of_token_ids_is_that_of_bytes():
    changes = {
        "text": list(TEXT),
        "sentence": [list(BEFORE), list(BETWEEN), list(AFTER)],
        "key_tokens": list(b"ABCDEF"),
        "value_tokens": list(b"0123456789"),
    }
    expected = TASKS["needle_in_text"](20)
    received = TASKS["needle_in_text"](20, **changes)
    np.testing.assert_array_equal(received.token_ids, expected.token_ids)


def test_a_needle_with_nothing_around_its_key():
    examples = TASKS["needle_in_text"](20, sentence=(b"@", b"", b""))
    assert examples.is_answer.sum() == 20 * 3


@pytest.mark.parametrize(
    "name, changes",
    [
        ("associative_recall", {"length": 15}),
        ("copy_at_distance", {"length": 12}),
        ("induction", {"length": 3}),
        ("needle_in_text", {"length": 31}),
    ],
)
def test_the_shortest_length(name, changes):
    """One token less is refused."""
    examples = TASKS[name](20, **changes)
    assert examples.token_ids.shape == (20, changes["length"])
    with pytest.raises(ValueError, match="`length`.*Received: length="):
        TASKS[name](20, **{**changes, "length": changes["length"] - 1})


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("associative_recall", {"num_examples": 0}, "`num_examples`"),
        ("associative_recall", {"num_pairs": 0}, "`num_pairs`"),
        ("associative_recall", {"num_pairs": 21}, "43 tokens or more"),
        ("associative_recall", {"num_queries": 6}, "no key is asked twice"),
        ("associative_recall", {"seed": "1"}, "`seed`"),
        ("associative_recall", {"seed": 2**40}, "32 bits"),
        # Five pairs and three questions differ by up to 12 tokens.
        ("associative_recall", {"distances": (20, 32)}, "There is room for 2"),
        ("associative_recall", {"distances": (70, 80)}, "There is room for 0"),
        ("associative_recall", {"distances": (0, 80)}, "1 <= low"),
        ("associative_recall", {"distances": (20, 20)}, "low < high"),
        ("associative_recall", {"distances": 20}, "(low, high)"),
        ("copy_at_distance", {"vocabulary_size": 3}, "`vocabulary_size`"),
        ("copy_at_distance", {"distances": (5, 40)}, "6 <= low"),
        ("copy_at_distance", {"distances": (6, 76)}, "high <= 75"),
        ("induction", {"vocabulary_size": 2}, "`vocabulary_size`"),
        ("induction", {"distances": (1, 80)}, "high <= 79"),
        ("needle_in_text", {"text": TEXT[:20]}, "`text`.*at least"),
        ("needle_in_text", {"text": [0.5]}, "`text`.*integers"),
        ("needle_in_text", {"text": TEXT + BEFORE}, "the only answer"),
        ("needle_in_text", {"sentence": (b"", b" is ", b".")}, "begin with"),
        ("needle_in_text", {"sentence": (b"@", b".")}, "three parts"),
        ("needle_in_text", {"value_tokens": b"00"}, "different tokens"),
        ("needle_in_text", {"key_tokens": b""}, "different tokens"),
        ("needle_in_text", {"depths": (0.5, 1.5)}, "high <= 1"),
        ("needle_in_text", {"depths": 0.5}, "`depths`"),
        ("needle_in_text", {"key_length": 2.0}, "`key_length`"),
    ],
)
def test_impossible_requests(name, changes, message):
    message = message.replace("(low, high)", r"\(low, high\)")
    with pytest.raises(ValueError, match=message) as error:
        TASKS[name](**changes)
    assert "Received: " in str(error.value)
