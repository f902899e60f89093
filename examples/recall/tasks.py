"""The tasks that run.py trains a model on, as its command line says."""

import dataclasses
import typing

from keras_sa import evaluation


@dataclasses.dataclass(frozen=True)
class Task:
    """How to make examples.

    Attributes:
        make: `keras_sa.evaluation` function of examples.
        options: those of the function that are on the command line.
        shortest: of the arguments: the tokens of sequences to begin with.
    """

    make: typing.Callable
    options: tuple
    shortest: typing.Callable

    def examples(self, arguments, num_examples, length, seed):
        options = {name: getattr(arguments, name) for name in self.options}
        return self.make(
            num_examples,
            length,
            vocabulary_size=arguments.vocabulary_size,
            seed=seed,
            **options,
        )


TASKS = {
    "associative_recall": Task(
        evaluation.associative_recall,
        ("num_pairs", "num_queries"),
        lambda arguments: 2 * (arguments.num_pairs + arguments.num_queries),
    ),
    "copy_at_distance": Task(
        evaluation.copy_at_distance,
        ("string_length",),
        # Twice would fit, at one distance: that is learned as a shift.
        lambda arguments: 4 * arguments.string_length,
    ),
    # One question for each sequence: many short ones.
    "induction": Task(evaluation.induction, (), lambda arguments: 8),
}
