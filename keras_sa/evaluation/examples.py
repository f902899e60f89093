"""Sequences with questions in them whose answers stand further back.

Letters: `N` examples, `n` tokens.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Sequences with questions whose answers stand a known distance back.

    A question is a position whose target, the answer, was determined by an
    earlier token, its source.

    Attributes:
        token_ids: int32 `[N, n]`.
        targets: int32 `[N, n]`: what to predict at each token: the answer of
            a question, elsewhere the next token.
        is_answer: bool `[N, n]`: where questions are.
        distance: int32 `[N, n]`: how many tokens the answer's source stands
            before the question, -1 where no question is. A window of `w` tokens
            at the question shows the source if `distance < w`; layers of
            sliding windows reach it if `distance <= layers * (w - 1)`.
        chance: the probability of a right guess by whoever does not see the
            source.

    Example:

    >>> import numpy as np
    >>> from keras_sa import evaluation
    >>> examples = evaluation.Examples(
    ...     token_ids=np.array([[7, 3, 0, 7]], "int32"),
    ...     targets=np.array([[3, 0, 7, 3]], "int32"),
    ...     is_answer=np.array([[False, False, False, True]]),
    ...     distance=np.array([[-1, -1, -1, 2]], "int32"),
    ...     chance=0.5,
    ... )
    >>> len(examples)
    1
    """

    token_ids: np.ndarray
    targets: np.ndarray
    is_answer: np.ndarray
    distance: np.ndarray
    chance: float

    def __post_init__(self):
        shapes = {
            name: np.shape(value)
            for name, value in vars(self).items()
            if name != "chance"
        }
        if len(set(shapes.values())) != 1 or np.ndim(self.token_ids) != 2:
            raise ValueError(
                "All arrays of `Examples` are expected to have one shape, "
                f"[examples, tokens]. Received: {shapes}"
            )

    def __len__(self):
        return len(self.token_ids)

    def inputs(self):
        """What KerasHub's models read: `token_ids` and `padding_mask`."""
        return {
            "token_ids": self.token_ids,
            "padding_mask": np.ones_like(self.token_ids),
        }

    def as_fit_arguments(self):
        """Keyword arguments of `fit` for a KerasHub `CausalLM`.

        Only answers count. The `CausalLM` has to take tokens: without a
        preprocessor.

        Returns:
            A dict of `x`: `inputs()`; `y`: targets `[N, n]`; `sample_weight`:
            float32 `[N, n]`, 0 where no question is and 1 in the mean, so that
            the loss Keras computes is the mean over the answers.
        """
        weight = self.is_answer / self.is_answer.mean()
        return {
            "x": self.inputs(),
            "y": self.targets,
            "sample_weight": weight.astype("float32"),
        }


def from_sequences(sequences, questions, sources, chance):
    """The `Examples` of sequences, one token longer than these.

    The answer of a question is its source.

    Args:
        sequences: int `[N, n + 1]`.
        questions: int `[N, Q]`: positions of the questions of each example.
        sources: int `[N, Q]`: positions of the sources of their answers.
        chance: float.
    """
    sequences = sequences.astype("int32")
    token_ids, targets = sequences[:, :-1], sequences[:, 1:].copy()
    answers = np.take_along_axis(sequences, sources, axis=1)
    np.put_along_axis(targets, questions, answers, axis=1)
    distance = np.full_like(targets, -1)
    np.put_along_axis(distance, questions, questions - sources, axis=1)
    return Examples(token_ids, targets, distance >= 0, distance, chance)
