"""Examples as training data."""

import keras
import numpy as np
import pytest

from keras_sa import evaluation


def recall_examples(num_examples=6):
    return evaluation.associative_recall(
        num_examples,
        21,
        vocabulary_size=17,
        num_pairs=4,
        num_queries=2,
        seed=1,
    )


def test_the_loss_is_the_mean_over_the_answers():
    examples = recall_examples()
    arguments = examples.as_fit_arguments()
    y, sample_weight = arguments["y"], arguments["sample_weight"]
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(*y.shape, 17)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    received = keras.ops.convert_to_numpy(loss(y, logits, sample_weight))

    log_sum = np.log(np.exp(logits).sum(-1))
    chosen = np.take_along_axis(logits, y[..., None], axis=-1)[..., 0]
    expected = (log_sum - chosen)[examples.is_answer].mean()
    assert received == pytest.approx(expected, rel=1e-5)
    assert sample_weight.dtype == "float32"


def test_only_answers_are_learned():
    """What stands elsewhere changes no weight."""
    examples = recall_examples()
    arguments = examples.as_fit_arguments()
    others = np.where(examples.is_answer, examples.targets, 0)

    def weights_after(targets):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Embedding(17, 17)])
        model.compile(
            keras.optimizers.SGD(1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        x = arguments["x"]["token_ids"]
        model.fit(**{**arguments, "x": x, "y": targets}, verbose=0)
        return model.get_weights()[0]

    assert (others != examples.targets).any()
    np.testing.assert_array_equal(
        weights_after(examples.targets), weights_after(others)
    )


def test_arrays_of_different_shapes_are_refused():
    examples = recall_examples()
    with pytest.raises(ValueError, match="one shape.*Received: "):
        evaluation.Examples(
            examples.token_ids,
            examples.targets[:, 1:],
            examples.is_answer,
            examples.distance,
            0.5,
        )
