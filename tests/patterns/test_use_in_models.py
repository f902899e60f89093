"""What a pattern says of its use in a model."""

import numpy as np
import pytest

from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from keras_sa.patterns import patterns_by_layer

QUESTION = SlidingWindow(4) | GlobalQueries(last=2)


@pytest.mark.parametrize(
    "pattern",
    [
        Full(),
        SlidingWindow(4, dilation=2) | GlobalKeys(first=1),
        Stochastic(4, permutation_per="head") + SlidingWindow(4),
        SlidingWindow(4) | GlobalQueries(first=2),
    ],
    ids=repr,
)
def test_patterns_that_decode(pattern):
    assert pattern.why_not_decode() is None


@pytest.mark.parametrize(
    "pattern, name",
    [
        (QUESTION, "GlobalQueries"),
        (SlidingWindow(4) + QUESTION, "GlobalQueries"),
        (BlockRouted(4, 2), "BlockRouted"),
        (GatedSum(BlockRouted(4, 2)), "BlockRouted"),
    ],
    ids=repr,
)
def test_patterns_that_do_not_decode_say_what_to_use(pattern, name):
    objection = pattern.why_not_decode()
    assert name in objection and "Take decode='full'" in objection


def test_routes_are_those_of_the_members():
    def find(block_size, top_k):
        return np.full((8, 1, top_k), block_size, "int32")

    assert SlidingWindow(4).find_routes(find) is None
    assert (SlidingWindow(4) + Stochastic(2)).find_routes(find) is None
    assert BlockRouted(4, 2).find_routes(find).shape == (8, 1, 2)
    pattern = BlockRouted(4, 1) + SlidingWindow(2) + BlockRouted(2, 1)

    def own(block_size, top_k):
        return (np.arange(8) // block_size).astype("int32")[:, None, None]

    routes = pattern.find_routes(own)
    assert routes[1] is None and len(routes) == 3
    mask = np.asarray(
        pattern.bind(is_causal=True, routes=routes).mask(8), "bool"
    )
    i, j = np.indices((8, 8))
    expected = (i // 4 == j // 4) | (i - j == 1)
    np.testing.assert_array_equal(mask, expected & (j <= i))


def test_blocks_have_no_bidirectional_pattern():
    with pytest.raises(ValueError, match="no mask.*Take another.*Received"):
        (BlockRouted(4, 2) + SlidingWindow(4)).symmetric()


@pytest.mark.parametrize("index", [True, np.True_, 1.0, "1", None])
def test_indices_of_layers_are_ints(index):
    with pytest.raises(ValueError, match="indices of layers"):
        patterns_by_layer({index: SlidingWindow(2)}, range(2))
    chosen = patterns_by_layer({np.int64(1): SlidingWindow(2)}, range(2))
    assert chosen == {1: SlidingWindow(2)}
