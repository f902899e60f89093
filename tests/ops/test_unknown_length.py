"""TensorFlow: one trace serves every batch size and length."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa.ops import dense_attention
from keras_sa.ops import sample_permutation
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "tensorflow",
    reason="only TensorFlow traces unknown lengths",
)
HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 3, 5
SHAPES = [(2, 1), (1, 3), (3, 20), (2, 33)]


def attend_densely(query, key, value, permutation, **arguments):
    arguments.pop("is_causal")
    arguments.pop("padding_mask")
    return dense_attention(query, key, value, **arguments)


PATHS = {**testing.PATHS, "dense": attend_densely}


def make_arrays(batch, length):
    rng = np.random.default_rng(length)
    sizes = ((HEADS, HEAD_DIM), (KV_HEADS, HEAD_DIM), (KV_HEADS, VALUE_DIM))
    arrays = [
        rng.normal(size=(batch, length, *size)).astype("float32")
        for size in sizes
    ]
    mask = np.arange(length) < np.maximum(length - np.arange(batch), 1)[:, None]
    return [*arrays, mask]


def build(path, padded, is_causal, per_head):
    """Output and gradients from query, key, value and padding mask."""
    import tensorflow as tf

    def function(query, key, value, mask):
        mask = mask if padded else None
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            order = sample_permutation(
                ops.shape(query)[1],
                5,
                padding_mask=mask,
                num_key_value_heads=KV_HEADS if per_head else None,
            )
            output = PATHS[path](
                query, key, value, order, is_causal=is_causal, padding_mask=mask
            )
            loss = tf.reduce_sum(output**2)
        return output, *tape.gradient(loss, (query, key, value))

    return function


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal, per_head", [(False, True), (True, False)])
def test_one_trace_for_all_lengths(path, padded, is_causal, per_head):
    import tensorflow as tf

    function = build(path, padded, is_causal, per_head)
    signature = [
        tf.TensorSpec((None, None, HEADS, HEAD_DIM)),
        tf.TensorSpec((None, None, KV_HEADS, HEAD_DIM)),
        tf.TensorSpec((None, None, KV_HEADS, VALUE_DIM)),
        tf.TensorSpec((None, None), "bool"),
    ]
    traced = tf.function(function, input_signature=signature)
    for batch, length in SHAPES:
        tensors = [tf.constant(x) for x in make_arrays(batch, length)]
        results = traced(*tensors)
        for actual, exact in zip(results, function(*tensors)):
            # The same arithmetic, cut in other chunks.
            scale = max(1.0, np.abs(exact).max())
            np.testing.assert_allclose(
                actual,
                exact,
                rtol=0,
                atol=16 * testing.EPSILON["float32"] * scale,
            )
    assert traced.experimental_get_tracing_count() == 1


def test_unknown_length_of_a_permutation():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((), "int32")] * 2)
    def sample(length, seed):
        return sample_permutation(length, seed)

    for length in (0, 1, 7, 40):
        expected = ops.convert_to_numpy(sample_permutation(length, 9))
        actual = sample(tf.constant(length), tf.constant(9))
        np.testing.assert_array_equal(actual, expected)


def test_attention_mask_of_unknown_length():
    import tensorflow as tf

    def function(x, mask):
        order = sample_permutation(ops.shape(x)[1], 5)
        return [
            attend(x, x, x, order, attention_mask=mask)
            for name, attend in testing.PATHS.items()
            if name != "native_block"
        ]

    traced = tf.function(
        function,
        input_signature=[
            tf.TensorSpec((None, None, 2, 4)),
            tf.TensorSpec((None, None, None), "bool"),
        ],
    )
    for batch, length in SHAPES:
        rng = np.random.default_rng(length)
        x = tf.constant(rng.normal(size=(batch, length, 2, 4)), "float32")
        mask = tf.constant(rng.random((batch, length, length)) < 0.6)
        for actual, exact in zip(traced(x, mask), function(x, mask)):
            np.testing.assert_allclose(actual, exact, rtol=0, atol=2**-19)
