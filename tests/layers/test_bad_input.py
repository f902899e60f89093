"""Errors that say what was expected and what came."""

import keras
import numpy as np
import pytest

import keras_sa
from keras_sa.patterns import SlidingWindow
from tests.layers.cases import LAYERS
from tests.layers.cases import REPRESENTATIVE
from tests.layers.cases import make
from tests.layers.cases import tokens

FORM = r"(?s)expect.*Received: "


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda x: keras_sa.SlidingWindowAttention(2, 4, window_size=x),
        lambda x: keras_sa.StochasticAttention(2, 4, window_size=x),
        lambda x: keras_sa.SmallWorldAttention(2, 4, window_size=x),
        lambda x: keras_sa.MixtureOfBlockAttention(2, 4, block_size=x, top_k=2),
        lambda x: keras_sa.MixtureOfBlockAttention(2, 4, block_size=2, top_k=x),
        lambda x: keras_sa.SlidingWindowAttention(x, 4, window_size=2),
        lambda x: keras_sa.SlidingWindowAttention(2, x, window_size=2),
    ],
)
def test_sizes_are_positive_integers(build, value):
    with pytest.raises(ValueError, match=FORM):
        build(value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_key_value_heads": 3},
        {"num_key_value_heads": 0},
        {"value_dim": 0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"dropout": "0.1"},
        {"output_shape": ()},
        {"output_shape": (4, 0)},
        {"output_shape": "4"},
        {"seed": 1.5},
        {"seed": 2**32},
        {"seed": True},
    ],
)
@pytest.mark.parametrize("name", LAYERS)
def test_common_arguments(name, arguments):
    with pytest.raises(ValueError, match=FORM):
        make(name, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("stochastic_window", {"neighborhood": "ring"}),
        ("stochastic_window", {"permutation_per": "token"}),
        ("stochastic_window", {"resample": True}),
        ("small_world_gate", {"merge": "sum"}),
        ("small_world_gate", {"gate_per": "layer"}),
        ("small_world_gate", {"local_window_size": 0}),
        ("small_world_softmax", {"gate_per": "channel"}),
        ("sliding_window", {"dilation": 0}),
        ("sliding_window", {"implementation": "fastest"}),
        ("union", {"gate_per": "head"}),
        ("union", {"pattern": "stochastic"}),
        ("union", {"pattern": SlidingWindow}),
    ],
)
def test_choices(name, arguments):
    with pytest.raises(ValueError, match=FORM):
        make(name, **arguments)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_cross_attention_is_refused_with_the_cure(name, symbolic):
    query, value = tokens(length=5), tokens(length=7)
    if symbolic:
        query, value = keras.Input((5, 10)), keras.Input((7, 10))
    with pytest.raises(ValueError, match="keras.layers.MultiHeadAttention"):
        make(name)(query, value)


@pytest.mark.parametrize("shape", [(4, 10), (2, 3, 4, 10)])
@pytest.mark.parametrize("name", LAYERS)
def test_rank_is_3(name, shape):
    with pytest.raises(ValueError, match="(?s)rank 3.*Received: "):
        make(name)(np.zeros(shape, "float32"))


@pytest.mark.parametrize(
    "masks",
    [
        {"query_mask": np.ones((2, 12), bool)},
        {"query_mask": np.ones((3, 13), bool)},
        {"query_mask": np.ones((2, 13), "float32")},
        {"attention_mask": np.ones((13,), bool)},
        {"attention_mask": np.ones((2, 13), bool)},
        {"attention_mask": np.ones((2, 13, 12), bool)},
        {"attention_mask": np.ones((3, 13, 13), bool)},
        {"attention_mask": np.ones((2, 4, 13, 13), bool)},
        {"attention_mask": np.ones((2, 13, 13), "float32")},
    ],
    ids=lambda masks: "-".join(
        f"{key}{value.shape}{value.dtype}" for key, value in masks.items()
    ),
)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_masks(name, masks):
    with pytest.raises(ValueError, match=FORM):
        make(name)(tokens(), **masks)


def test_channel_gates_have_no_scores():
    with pytest.raises(ValueError, match=FORM):
        make("small_world_channel")(tokens(), return_attention_scores=True)
