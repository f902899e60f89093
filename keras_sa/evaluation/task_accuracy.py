"""How often a model answers, by the distance of the answer's source.

Letters: `B` batch, `N` examples, `n` tokens, `V` vocabulary.
"""

import dataclasses
import itertools
import math

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class BucketAccuracy:
    """The accuracy at some distances.

    Attributes:
        low: int: the smallest distance of the bucket, in tokens.
        high: int: the first that is too large.
        accuracy: float: share of right answers; NaN without a question.
        count: int: questions in the bucket.
    """

    low: int
    high: int
    accuracy: float
    count: int

    @property
    def standard_error(self):
        """Of the accuracy, as if the questions were independent."""
        if not self.count:
            return math.nan
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.count)


def accuracy_by_distance(is_right, examples, buckets=None):
    """The accuracy at near and at far sources.

    Args:
        is_right: bool `[N, n]`: whether the target was predicted. Only read
            where a question is.
        examples: `Examples` of `[N, n]`.
        buckets: increasing ints, two or more: a bucket holds the distances
            from one to below the next. Default: one bucket of all distances.

    Returns:
        A list of `BucketAccuracy`, one for each bucket.

    Raises:
        ValueError: for another shape, or buckets that do not increase.

    Example:

    >>> import numpy as np
    >>> from keras_sa import evaluation
    >>> examples = evaluation.induction(
    ...     100, 30, vocabulary_size=9, seed=1
    ... )
    >>> is_near = examples.distance < 8
    >>> for bucket in evaluation.accuracy_by_distance(
    ...     is_near, examples, buckets=(1, 8, 29)
    ... ):
    ...     print(bucket)
    BucketAccuracy(low=1, high=8, accuracy=1.0, count=23)
    BucketAccuracy(low=8, high=29, accuracy=0.0, count=77)
    """
    is_right = np.asarray(is_right)
    if is_right.shape != examples.is_answer.shape:
        raise ValueError(
            "`is_right` is expected to have the shape of the examples, "
            f"{examples.is_answer.shape}. "
            f"Received: is_right.shape={is_right.shape}"
        )
    distances = examples.distance[examples.is_answer]
    right = is_right[examples.is_answer]
    if buckets is None:
        buckets = (int(distances.min()), int(distances.max()) + 1)
    return [
        _accuracy_between(low, high, distances, right)
        for low, high in itertools.pairwise(_check_buckets(buckets))
    ]


def _check_buckets(buckets):
    edges = [int(edge) for edge in buckets]
    if len(edges) < 2 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError(
            "`buckets` is expected to be two or more increasing distances. "
            f"Received: buckets={buckets!r}"
        )
    return edges


def _accuracy_between(low, high, distances, right):
    chosen = right[(low <= distances) & (distances < high)]
    accuracy = float(chosen.mean()) if chosen.size else math.nan
    return BucketAccuracy(low, high, accuracy, int(chosen.size))


def evaluate_task(model, examples, batch_size=32, buckets=None):
    """How often a model's most likely token is the answer, by distance.

    Where answers follow their questions, those before a question are in the
    text (teacher forcing). Predicted tokens leave the device, not logits; on
    it, the logits of a batch take `B n V` numbers. The model is compiled anew
    at every call, so an attention that was swapped since is the one that is
    graded.

    Args:
        model: a `keras_hub.models.CausalLM`, or any Keras model of logits
            `[B, n, V]`. A model with a `backbone` is given `token_ids` and
            `padding_mask`, as KerasHub's are, any other the token ids alone.
        examples: `Examples`.
        batch_size: int `B`.
        buckets: as in `accuracy_by_distance`.

    Returns:
        A list of `BucketAccuracy`.

    Example:

    >>> import keras
    >>> from keras_sa import evaluation
    >>> examples = evaluation.copy_at_distance(
    ...     8, 20, vocabulary_size=16, string_length=4, seed=1
    ... )
    >>> model = keras.Sequential([keras.layers.Embedding(16, 16)])
    >>> [bucket] = evaluation.evaluate_task(model, examples)
    >>> bucket.count
    32
    """
    inputs = examples.token_ids
    if hasattr(model, "backbone"):
        inputs = examples.inputs()
    predicted = _MostLikelyToken(model).predict(
        inputs, batch_size=batch_size, verbose=0
    )
    return accuracy_by_distance(
        predicted == examples.targets, examples, buckets
    )


class _MostLikelyToken(keras.Model):
    """Token ids `[B, n]` instead of logits `[B, n, V]`."""

    def __init__(self, model):
        # TensorFlow's scopes take no name that begins with an underscore.
        super().__init__(name="most_likely_token")
        self.model = model

    def call(self, inputs):
        logits = self.model(inputs, training=False)
        return keras.ops.argmax(logits, axis=-1)
