"""Each task of the recall example can be made, short and long."""

import argparse

import pytest

from examples.recall.tasks import TASKS

ARGUMENTS = argparse.Namespace(
    vocabulary_size=17, num_pairs=3, num_queries=2, string_length=5
)


@pytest.mark.parametrize("name", TASKS)
def test_short_and_long_examples(name):
    task = TASKS[name]
    for length in (task.shortest(ARGUMENTS), 40):
        examples = task.examples(ARGUMENTS, 6, length, seed=1)
        assert examples.token_ids.shape == (6, length)
        assert examples.token_ids.max() < 17
        assert (examples.is_answer.sum(axis=1) > 0).all()


@pytest.mark.parametrize(
    "name, questions",
    [("associative_recall", 2), ("copy_at_distance", 5), ("induction", 1)],
)
def test_the_options_of_the_task_are_used(name, questions):
    examples = TASKS[name].examples(ARGUMENTS, 4, 40, seed=1)
    assert examples.is_answer.sum() == 4 * questions
