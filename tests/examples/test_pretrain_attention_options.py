"""The command line becomes options of the swap, and wrong ones are named."""

import argparse

import pytest

from examples.pretrain import attention_options
from examples.pretrain.attention_options import MODES
from examples.shared import attentions


def parse(*words):
    parser = argparse.ArgumentParser()
    attention_options.add_arguments(parser)
    return parser.parse_args(words)


def options_of(*words):
    arguments = parse(*words)
    attention_options.fill_in_defaults(arguments, window_size=12)
    assert attention_options.why_not(arguments) is None
    return attention_options.swap_options(arguments)


def test_full_attention_is_no_swap():
    assert options_of() == options_of("--attention", "full", "full") == {}


def test_one_mode_is_a_string():
    assert options_of("--attention", "sliding_window") == {
        "mode": "sliding_window",
        "window_size": 12,
    }
    assert options_of("--attention", "block_routed", "--top-k", "5") == {
        "mode": "block_routed",
        "block_size": 3,
        "top_k": 5,
    }


def test_modes_take_turns():
    words = ("--attention", "full", "small_world", "--local-window", "4")
    assert options_of(*words) == {
        "mode": [
            {"mode": "full"},
            {
                "mode": "small_world",
                "window_size": 12,
                "local_window_size": 4,
                "neighborhood": "window",
                "merge": "gate",
                "permute": "layer",
                "order": "random",
                "resample": "training",
            },
        ],
        "gate_bias": (0.0, 0.0),
    }
    modes = attention_options.modes_of_layers(parse(*words), 3)
    assert modes == ["full", "small_world", "full"]


def test_one_softmax_has_no_gates():
    words = ("--attention", "small_world", "--merge", "softmax")
    assert "gate_bias" not in options_of(*words)


def test_a_window_has_the_gate_that_is_asked_for():
    alone = ("--attention", "sliding_window")
    assert "gate_bias" not in options_of(*alone)
    assert options_of(*alone, "--merge", "gate") == {
        "mode": "sliding_window",
        "window_size": 12,
        "merge": "gate",
        "gate_bias": (0.0, 0.0),
    }


@pytest.mark.parametrize("merge", [(), ("--merge", "softmax")])
def test_a_window_beside_a_small_world_has_no_gate(merge):
    options = options_of("--attention", "sliding_window", "small_world", *merge)
    window, small_world = options["mode"]
    assert "merge" not in window
    assert small_world["merge"] == (merge or ("gate",))[-1]


@pytest.mark.parametrize("name", ["two_windows", "gated_window", *MODES])
def test_words_ask_for_the_options(name):
    wanted = attentions.options_at(name, budget=8, length=64)
    received = options_of(*attention_options.as_words(wanted))
    if name == "full":
        assert received == {}
    else:
        assert {**received, **wanted} == received


@pytest.mark.parametrize(
    "words",
    [
        ("--window", "4"),
        ("--attention", "stochastic", "--merge", "gate"),
        ("--attention", "sliding_window", "--merge", "softmax"),
        ("--attention", "sliding_window", "--top-k", "2"),
        ("--attention", "sliding_window", "--resample", "never"),
    ],
)
def test_options_of_other_modes_are_refused(words):
    arguments = parse(*words)
    attention_options.fill_in_defaults(arguments, window_size=12)
    wrong = attention_options.why_not(arguments)
    assert wrong.startswith(f"{words[-2]} expects --attention")
    assert wrong.endswith(f"Received: {words[-2]} {words[-1]}")
