"""What is particular to the portable path; its values and gradients are tested
with those of the others in `test_attention_cases.py`."""

import keras
import numpy as np
import pytest

from keras_sa.ops import sample_permutation
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from keras_sa.ops.windowed import chunked
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import portable
from tests import testing


@pytest.mark.parametrize(
    "arguments, rows",
    [
        ({}, 1),
        ({"neighborhood": "block"}, 1),
        ({"is_causal": True}, 6),
        ({"exclude_local": 3}, 6),
        ({"padding_mask": np.arange(37)[None] < np.array([[37], [20]])}, 6),
        ({"attention_mask": np.ones((1, 37, 37), "bool")}, 6),
    ],
    ids=lambda x: next(iter(x), "plain") if isinstance(x, dict) else None,
)
def test_one_mask_where_orders_make_no_difference(arguments, rows, monkeypatch):
    visible_keys, seen = common.visible_keys, []

    def spy(arguments, key_position, *others):
        seen.append(tuple(key_position.shape))
        return visible_keys(arguments, key_position, *others)

    monkeypatch.setattr(common, "visible_keys", spy)
    x = keras.random.normal((2, 37, 3, 4), seed=0)
    padding_mask = arguments.get("padding_mask")
    order = sample_permutation(37, 0, padding_mask, num_key_value_heads=3)
    stochastic_attention(
        x,
        x,
        x,
        order,
        window_size=8,
        implementation="portable",
        **arguments,
    )
    assert [shape[0] for shape in seen] == [rows]


only_on_tensorflow = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="parts are for TensorFlow"
)

# Heads, one part after the other.


@pytest.fixture
def parts(monkeypatch):
    """What is attended to, part by part, however few the scores."""
    monkeypatch.setattr(portable, "PART_BYTES", 1)
    attend, seen = chunked.attend_rows, []

    def spy(*arguments, **tensors):
        seen.append(tensors)
        return attend(*arguments, **tensors)

    monkeypatch.setattr(chunked, "attend_rows", spy)
    return seen


@only_on_tensorflow
@pytest.mark.parametrize(
    "case",
    [case for case in testing.CASES if case.top_k is None],
    ids=lambda case: case.name,
)
def test_values_and_gradients(case, parts):
    testing.assert_case(case, "portable", "float32")
    assert len(parts) > 1
    assert len({tuple(part["query"].shape) for part in parts}) == 1


def attend(batch_size, num_kv_heads, length=64, dropout=0.0):
    query = keras.random.normal((batch_size, length, 12, 4), seed=0)
    key = query[:, :, :num_kv_heads]
    return sliding_window_attention(
        query, key, key, window_size=8, dropout=dropout, dropout_seed=1
    )


@only_on_tensorflow
@pytest.mark.parametrize(
    "batch_size, num_kv_heads, expected", [(1, 1, 1), (1, 12, 6), (5, 1, 5)]
)
def test_a_part_has_as_many_rows_as_another(
    batch_size, num_kv_heads, expected, parts
):
    attend(batch_size, num_kv_heads)
    assert len(parts) == expected


@only_on_tensorflow
def test_few_scores_are_one_part(parts, monkeypatch):
    scores = 12 * 64 * 12 * 4  # a chunk of 4 and two neighbours: 12 keys
    for part_bytes, expected in [(scores // 2, 2), (scores // 2 + 1, 1)]:
        monkeypatch.setattr(portable, "PART_BYTES", part_bytes)
        parts.clear()
        attend(1, 12)
        assert len(parts) == expected


@only_on_tensorflow
def test_dropout_is_drawn_once_for_all(parts):
    """An integer seed would drop the same weights in every part."""
    attend(1, 12, dropout=0.5)
    assert len(parts) == 1


@only_on_tensorflow
def test_the_length_may_be_unknown(parts):
    import tensorflow as tf

    spec = tf.TensorSpec((None, None, 4, 4))
    tensors = [keras.random.normal((2, 37, 4, 4), seed=i) for i in range(3)]

    def run(*tensors):
        return sliding_window_attention(*tensors, window_size=8, is_causal=True)

    received = tf.function(run, input_signature=[spec] * 3)(*tensors)
    assert len(parts) == 4
    assert keras.ops.max(abs(received - run(*tensors))) < 1e-5
