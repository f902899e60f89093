"""The draws are uniform, and the same everywhere."""

import numpy as np
import pytest

from keras_sa.evaluation.draws import Draws


@pytest.mark.parametrize("high", [1, 2, 7, 1000])
def test_integers_are_uniform(high):
    count = 2000 * min(high, 20)
    drawn = Draws(1).integers(high, (2, count // 2))
    assert drawn.shape == (2, count // 2)
    assert drawn.min() >= 0 and drawn.max() < high
    counts = np.bincount(drawn.ravel(), minlength=high)
    expected = count / high
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - (high - 1)) <= 5 * np.sqrt(2 * (high - 1))


def test_orders_are_uniform():
    orders = Draws(1).orders(6000, 4)
    np.testing.assert_array_equal(
        np.sort(orders, axis=1), np.broadcast_to(np.arange(4), (6000, 4))
    )
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert abs(counts - 250).max() < 5 * np.sqrt(250)


def test_draws_follow_one_another():
    draws = Draws(1)
    first, second = draws.integers(1000, (9,)), draws.integers(1000, (9,))
    assert (first != second).any()
    np.testing.assert_array_equal(Draws(1).integers(1000, (9,)), first)


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 0])
def test_every_seed_that_layers_take(seed):
    assert Draws(seed).integers(10, (3,)).shape == (3,)
