"""Grading: by distance, and of the attention that a model has now.

Letters: `N` examples, `n` tokens, `V` vocabulary.
"""

import math

import keras
import keras_hub
import numpy as np
import pytest

from keras_sa import evaluation
from keras_sa import hub
from keras_sa.patterns import SlidingWindow

VOCABULARY_SIZE = 16
LENGTH = 30
BUCKETS = (4, 10, 20, 27)


def copy_examples(num_examples=20, **options):
    return evaluation.copy_at_distance(
        num_examples,
        LENGTH,
        vocabulary_size=VOCABULARY_SIZE,
        string_length=4,
        seed=1,
        **options,
    )


class LooksBack(keras.Model):
    """Predicts the token that stands a number of tokens back."""

    def __init__(self, distance):
        super().__init__()
        self.distance = distance

    def call(self, token_ids):
        moved = keras.ops.roll(token_ids, self.distance, axis=1)
        return keras.ops.one_hot(moved, VOCABULARY_SIZE)


def test_accuracy_by_distance():
    examples = copy_examples()
    rng = np.random.default_rng(0)
    is_right = rng.random(examples.is_answer.shape) < 0.6
    received = evaluation.accuracy_by_distance(is_right, examples, BUCKETS)
    count = 0
    for bucket, low, high in zip(received, BUCKETS, BUCKETS[1:]):
        chosen = (low <= examples.distance) & (examples.distance < high)
        share = is_right[chosen].mean()
        assert (bucket.low, bucket.high) == (low, high)
        assert bucket.accuracy == pytest.approx(share)
        assert bucket.count == chosen.sum()
        error = math.sqrt(share * (1 - share) / chosen.sum())
        assert bucket.standard_error == pytest.approx(error)
        count += bucket.count
    assert count == examples.is_answer.sum()


def test_one_bucket_of_everything():
    examples = copy_examples()
    [bucket] = evaluation.accuracy_by_distance(examples.is_answer, examples)
    assert bucket.accuracy == 1.0
    assert bucket.standard_error == 0.0
    assert bucket.count == examples.is_answer.sum()
    distances = examples.distance[examples.is_answer]
    assert (bucket.low, bucket.high - 1) == (distances.min(), distances.max())


def test_an_empty_bucket_has_no_accuracy():
    examples = copy_examples()
    empty, _ = evaluation.accuracy_by_distance(
        examples.is_answer, examples, (1, 4, 27)
    )
    assert empty.count == 0
    assert math.isnan(empty.accuracy) and math.isnan(empty.standard_error)


@pytest.mark.parametrize("buckets", [(4,), (4, 4), (9, 4), ()])
def test_buckets_that_do_not_increase_are_refused(buckets):
    examples = copy_examples()
    with pytest.raises(ValueError, match="`buckets`.*Received: buckets="):
        evaluation.accuracy_by_distance(examples.is_answer, examples, buckets)


def test_answers_of_another_shape_are_refused():
    examples = copy_examples()
    with pytest.raises(ValueError, match="`is_right`.*Received: "):
        evaluation.accuracy_by_distance(examples.is_answer[0], examples)


@pytest.mark.parametrize("distance", [8, 12])
def test_a_model_that_looks_back_is_right_at_its_distance(distance):
    """With a last batch that is not full."""
    examples = copy_examples(num_examples=101)
    buckets = (distance, distance + 1, 27)
    right, others = evaluation.evaluate_task(
        LooksBack(distance), examples, batch_size=10, buckets=buckets
    )
    assert right.count > 0 and right.accuracy == 1.0
    assert others.count > 0 and others.accuracy < 0.5


def build_causal_lm():
    backbone = keras_hub.models.Qwen3Backbone(
        vocabulary_size=VOCABULARY_SIZE,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        hidden_dim=16,
        intermediate_dim=16,
    )
    return keras_hub.models.Qwen3CausalLM(backbone=backbone, preprocessor=None)


def test_the_attention_of_the_moment_is_graded():
    """A swap, its end, and a model that was used before each."""
    model, examples = build_causal_lm(), copy_examples(num_examples=64)
    # Large weights: an untrained model hardly notices what it attends to.
    model.set_weights([5 * weight for weight in model.get_weights()])
    every_distance = range(4, 27)

    def check():
        logits = keras.ops.convert_to_numpy(model(examples.inputs()))
        is_right = logits.argmax(-1) == examples.targets
        expected = evaluation.accuracy_by_distance(
            is_right, examples, every_distance
        )
        received = evaluation.evaluate_task(
            model, examples, batch_size=64, buckets=every_distance
        )
        assert received == expected
        return received

    full = check()
    with hub.swap_attention(model, SlidingWindow(2)):
        assert check() != full
    assert check() == full
