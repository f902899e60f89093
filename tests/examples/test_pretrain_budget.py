"""The formulas of --dry-run count what a built model has."""

import argparse
import math

import pytest

from examples.pretrain import budget
from examples.pretrain.model import build_model
from examples.pretrain.sizes import SIZES
from examples.pretrain.sizes import Shape
from keras_sa import hub
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

SHAPE = Shape(
    num_layers=3,
    num_query_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    hidden_dim=24,
    intermediate_dim=40,
)
VOCABULARY = 50
SMALL_WORLD = Stochastic(4) + SlidingWindow(4)


def test_parameters_are_those_of_the_tiny_model():
    shape = SIZES["tiny"].shape
    model = build_model(shape, 256, "float32")
    assert budget.num_parameters(shape, 256) == model.count_params()


def test_parameters_of_gates_are_counted():
    model = build_model(SHAPE, VOCABULARY, "float32")
    hub.swap_attention(model, SMALL_WORLD, layers=[0, 2])
    counted = budget.num_parameters(SHAPE, VOCABULARY, 4)
    assert counted == model.count_params()


def test_every_matrix_is_two_flops_per_entry():
    model = build_model(SHAPE, VOCABULARY, "float32")
    hub.swap_attention(model, SMALL_WORLD, layers=[1])
    # The embedding is a look-up at the beginning and a product at the end.
    weights = [v for v in model.trainable_variables if v.name != "bias"]
    matrices = [v for v in weights if len(v.shape) > 1]
    entries = sum(math.prod(v.shape) for v in matrices)
    flops = budget.forward_flops_per_token(
        SHAPE, VOCABULARY, [0, 0, 0], num_gates=2
    )
    assert flops == 2 * entries


def test_attention_is_scores_and_values_by_visible_keys():
    keys = [10, 20, 5]
    without, with_keys = (
        budget.forward_flops_per_token(SHAPE, VOCABULARY, k)
        for k in ([0, 0, 0], keys)
    )
    heads = SHAPE.num_query_heads * SHAPE.head_dim
    # A product and a sum per channel, for the score and for the value.
    assert with_keys - without == sum(keys) * heads * 4


def arguments():
    given = {
        "length": 32,
        "steps": 10,
        "batch_size": 2,
        "accumulation": 3,
        "dtype": "float32",
    }
    return argparse.Namespace(**given)


def test_a_window_has_one_gate():
    model = build_model(SHAPE, VOCABULARY, "float32")
    hub.swap_attention(model, GatedSum(SlidingWindow(4)))
    counted = budget.num_parameters(SHAPE, VOCABULARY, SHAPE.num_layers)
    assert counted == model.count_params()


def test_the_report_adds_up():
    patterns = [Full(), SMALL_WORLD, GatedSum(SlidingWindow(4))]
    lines = budget.report(arguments(), SHAPE, patterns, VOCABULARY)
    parameters = budget.num_parameters(SHAPE, VOCABULARY, 3)
    assert lines[0] == f"parameters: {parameters:,}"
    assert lines[1] == "tokens: 1,920 in 10 steps of 192"
    keys = [x.keys_per_token(32, is_causal=True) for x in patterns]
    assert f"mean of the layers: {sum(keys) / 3:.1f}; full" in lines[2]


@pytest.mark.parametrize("accumulation, copies", [(1, 4), (2, 5)])
def test_memory_of_float32_is_copies_of_the_weights(accumulation, copies):
    needed = budget.memory(
        SHAPE,
        VOCABULARY,
        1000,
        length=8,
        batch_size=2,
        dtype="float32",
        accumulation=accumulation,
    )
    assert needed.total - needed.activations_estimated == 4 * copies * 1000
    assert needed.activations_estimated > 0
