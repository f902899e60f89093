"""The number of visible keys is what the masks of the attentions show."""

import numpy as np
import pytest
from keras import ops

from examples.shared.visible_keys import visible_keys
from keras_sa.ops import patterns
from keras_sa.patterns.permutation import sample_permutation

LENGTH = 40
DRAWS = 60


def counted(mode, window_size, local_window_size=None, neighborhood="window"):
    """Mean keys of a causal token over some permutations."""
    local = patterns.sliding_window_mask(
        LENGTH, local_window_size or window_size, causal=True
    )
    if mode == "sliding_window":
        return np.mean(ops.convert_to_numpy(local)) * LENGTH
    masks = [
        patterns.stochastic_mask(
            sample_permutation(LENGTH, seed), window_size, neighborhood, True
        )
        for seed in range(DRAWS)
    ]
    if mode == "small_world":
        masks = [ops.logical_or(mask, local) for mask in masks]
    return np.mean([ops.convert_to_numpy(mask) for mask in masks]) * LENGTH


@pytest.mark.parametrize(
    "mode, options",
    [
        ("sliding_window", {"window_size": 9}),
        ("stochastic", {"window_size": 9}),
        ("stochastic", {"window_size": 9, "neighborhood": "block"}),
        ("small_world", {"window_size": 12, "local_window_size": 5}),
        ("small_world", {"window_size": 9}),
    ],
)
def test_as_many_as_the_masks_show(mode, options):
    merge = {"merge": "softmax"} if mode == "small_world" else {}
    keys = visible_keys(LENGTH, mode, **options, **merge)
    assert keys == pytest.approx(counted(mode, **options), abs=0.15)


def test_gated_paths_count_separately():
    options = {"window_size": 12, "local_window_size": 5}
    both = visible_keys(LENGTH, "small_world", merge="gate", **options)
    paths = counted("sliding_window", 5) + counted("stochastic", 12)
    assert both == pytest.approx(paths, abs=0.15)


def test_full_and_block_routed():
    assert visible_keys(LENGTH, "full") == (LENGTH + 1) / 2
    everything = visible_keys(
        LENGTH, "block_routed", block_size=LENGTH, top_k=1
    )
    assert everything == (LENGTH + 1) / 2


@pytest.mark.parametrize("window_size", [8, 9])
@pytest.mark.parametrize("neighborhood", ["window", "block"])
def test_without_a_random_order(window_size, neighborhood):
    mask = patterns.stochastic_mask(
        np.arange(LENGTH), window_size, neighborhood, True
    )
    expected = np.mean(ops.convert_to_numpy(mask)) * LENGTH
    options = {
        "window_size": window_size,
        "neighborhood": neighborhood,
        "order": "identity",
    }
    keys = visible_keys(LENGTH, "stochastic", **options)
    assert keys == pytest.approx(expected)


def test_one_window_in_another_counts_once():
    options = {"window_size": 9, "order": "identity", "merge": "softmax"}
    keys = visible_keys(LENGTH, "small_world", local_window_size=3, **options)
    assert keys == visible_keys(LENGTH, "sliding_window", window_size=5)
