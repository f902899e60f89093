"""Suggested windows cover the text, and no smaller ones do."""

import dataclasses

import keras
import pytest

from keras_sa import analysis
from keras_sa.analysis.suggestion import smallest_true
from keras_sa.analysis.suggestion import windows

only_on_torch = pytest.mark.skipif(
    keras.config.backend() != "torch",
    reason="a search tries many windows, which JAX compiles one by one; what "
    "it tries is tested on all backends",
)


def stack_of(suggestion, layers):
    return [
        suggestion.pattern.bind(is_causal=True, seed=seed)
        for seed in range(layers)
    ]


def kinds_of(suggestion):
    return tuple(type(x).__name__ for x in suggestion.pattern.leaves())


@only_on_torch
def test_suggestions_cover():
    found = analysis.suggest_window(512, layers=3, budget=256)
    assert {kinds_of(x) for x in found} == {
        ("SlidingWindow",),
        ("Stochastic", "SlidingWindow"),
        ("Stochastic",),
    }
    keys = [x.keys_per_token for x in found]
    assert keys == sorted(keys) and keys[-1] <= 256
    for suggestion in found:
        stack = stack_of(suggestion, 3)
        field = analysis.receptive_field(stack, 512, is_causal=True)
        assert field.coverage[-1] == suggestion.coverage >= 0.99
        assert field.coverage_depth(0.99) == suggestion.coverage_depth <= 3
        keys = suggestion.pattern.keys_per_token(10**6, is_causal=True)
        assert keys == pytest.approx(suggestion.keys_per_token, abs=0.05)


@only_on_torch
def test_fewer_keys_do_not_cover():
    found = analysis.suggest_window(512, layers=3, budget=256)
    alone = [x for x in found if len(kinds_of(x)) == 1]
    assert len(alone) == 2
    for suggestion in alone:
        pattern = suggestion.pattern
        less = 1 if kinds_of(suggestion) == ("SlidingWindow",) else 2  # one key
        size = pattern.window_size - less
        pattern = dataclasses.replace(pattern, window_size=size)
        smaller = [pattern.bind(is_causal=True, seed=seed) for seed in range(3)]
        field = analysis.receptive_field(smaller, 512, is_causal=True)
        assert field.coverage[-1] < 0.99


@only_on_torch
def test_both_windows_together_need_the_fewest_keys():
    best, *_, worst = analysis.suggest_window(1500, layers=4, budget=1500)
    assert kinds_of(best) == ("Stochastic", "SlidingWindow")
    assert best.keys_per_token < worst.keys_per_token / 5


def test_one_layer_has_to_see_nearly_everything():
    found = analysis.suggest_window(64, layers=1, budget=64, coverage=1.0)
    assert {x.keys_per_token for x in found} == {64}
    kinds = {kinds_of(x) for x in found}
    assert kinds >= {("SlidingWindow",), ("Stochastic",)}


@only_on_torch
def test_options_reach_the_order():
    one = analysis.suggest_window(400, layers=3, budget=200)
    heads = analysis.suggest_window(
        400, layers=3, budget=200, num_key_value_heads=4, neighborhood="block"
    )
    assert heads[0].keys_per_token < one[0].keys_per_token


@only_on_torch
def test_long_texts_are_sampled():
    steps = []
    found = analysis.suggest_window(
        5000,
        layers=8,
        budget=32,
        num_sources=64,
        progress=lambda *step: steps.append(step),
    )
    assert found[0].standard_error > 0
    assert steps == [(step, 9) for step in range(1, 10)]


@pytest.mark.parametrize("answer", [1, 2, 37, 99, 100])
@pytest.mark.parametrize("start", [1, 36, 100])
def test_smallest_true(answer, start):
    assert smallest_true(lambda x: x >= answer, start, 100) == answer


def test_smallest_true_of_nothing():
    assert smallest_true(lambda x: False, 3, 100) is None


def test_windows_show_as_many_keys_as_asked():
    assert windows(8, 0.0) == (0, 15)
    assert windows(8, 0.5) == (4, 7)
    assert windows(8, 1.0) == (8, 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": 0}, "`layers`"),
        ({"length": 0}, "`length`"),
        ({"budget": 1.5}, "`budget`"),
        ({"coverage": 0}, "`coverage`.*Received: coverage=0"),
        ({"coverage": 99}, "`coverage`.*Received: coverage=99"),
        ({"neighborhood": "ring"}, "`neighborhood`"),
        ({"budget": 4}, "No window of up to 4 keys.*budget=4"),
    ],
)
def test_bad_arguments(options, message):
    arguments = {"length": 300, "layers": 2, "budget": 100, **options}
    with pytest.raises(ValueError, match=message):
        analysis.suggest_window(**arguments)
