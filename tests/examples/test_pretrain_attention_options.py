"""The command line becomes options of the swap, and wrong ones are named."""

import argparse

import pytest

from examples.pretrain import attention_options
from examples.shared import attentions
from examples.shared.attentions import ATTENTIONS
from keras_sa.patterns import Full
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


def parse(*words):
    parser = argparse.ArgumentParser()
    attention_options.add_arguments(parser)
    return parser.parse_args(words)


def options_of(*words):
    return attention_options.swap_options(parse(*words))


def test_full_attention_is_no_swap():
    assert options_of() == options_of("--pattern", "Full()", "Full()") == {}


def test_gates_start_at_the_mean_of_the_terms():
    options = options_of("--pattern", "Stochastic(12) + SlidingWindow(12)")
    assert options["pattern"] == Stochastic(12) + SlidingWindow(12)
    assert options["gate_bias"] == [0, 0]
    one = options_of("--pattern", "GatedSum(SlidingWindow(12))")
    assert one["gate_bias"] == [0]
    assert options_of("--pattern", "Stochastic(12)")["gate_bias"] is None


def test_patterns_are_interleaved():
    words = ("--pattern", "Full()", "Stochastic(12) | SlidingWindow(4)")
    small_world = Stochastic(12) | SlidingWindow(4)
    assert options_of(*words, "--resample", "never") == {
        "pattern": [Full(), small_world],
        "gate_bias": None,
        "resample": "never",
    }
    patterns = attention_options.patterns_of_layers(parse(*words), 3)
    assert patterns == [Full(), small_world, Full()]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_words_ask_for_the_pattern(name):
    wanted = attentions.pattern_at(name, budget=8, length=64)
    resample = ATTENTIONS[name].resample
    received = options_of(*attention_options.as_words(wanted, resample))
    assert received.get("pattern", Full()) == wanted
    if resample is not None:
        assert received["resample"] == resample


def test_what_is_no_pattern_is_refused():
    with pytest.raises(SystemExit, match="--pattern: A pattern is expected"):
        options_of("--pattern", "small_world")
