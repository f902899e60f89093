"""Masks, neighbour lists and budgets, against counting in plain Python."""

import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import patterns

LENGTHS_AND_WINDOWS = [
    (1, 1),
    (1, 4),
    (2, 1),
    (5, 6),
    (6, 6),
    (7, 6),
    (13, 4),
    (13, 5),
]
parametrize_size = pytest.mark.parametrize(
    "length, window", LENGTHS_AND_WINDOWS
)
parametrize_causal = pytest.mark.parametrize("causal", [False, True])
parametrize_neighborhood = pytest.mark.parametrize(
    "neighborhood", ["window", "block"]
)


def numpy_of(function, *tensors):
    tensors = (ops.convert_to_tensor(x) for x in tensors)
    return np.asarray(ops.convert_to_numpy(backend.compile(function)(*tensors)))


def sees_sliding(i, j, window, causal):
    """Whether token i sees token j, as section 2 of the design words it."""
    if causal:
        return i - window + 1 <= j <= i
    return i - window // 2 <= j <= i + (window - 1) // 2


def sees_stochastic(i, j, slot, window, neighborhood, causal, exclude_local):
    if causal and j > i:
        return False
    if exclude_local and sees_sliding(i, j, exclude_local, causal):
        return False
    if neighborhood == "block":
        return slot[i] // window == slot[j] // window
    return slot[i] - window // 2 <= slot[j] <= slot[i] + (window - 1) // 2


def count_mask(length, sees):
    pairs = [[sees(i, j) for j in range(length)] for i in range(length)]
    return np.array(pairs, bool)


def mask_of_neighbors(neighbors, length):
    mask = np.zeros((length, length), bool)
    for i, row in enumerate(neighbors):
        seen = row[row >= 0]
        assert len(set(seen)) == len(seen), "a neighbour is listed twice"
        mask[i, seen] = True
    return mask


@parametrize_size
@parametrize_causal
def test_sliding_window(length, window, causal):
    expected = count_mask(
        length, lambda i, j: sees_sliding(i, j, window, causal)
    )
    mask = numpy_of(
        lambda: patterns.sliding_window_mask(length, window, causal)
    )
    np.testing.assert_array_equal(mask, expected)
    neighbors = numpy_of(
        lambda: patterns.sliding_window_neighbors(length, window, causal)
    )
    assert neighbors.shape == (length, window)
    np.testing.assert_array_equal(
        mask_of_neighbors(neighbors, length), expected
    )
    budget = patterns.visible_keys_per_token(length, window, causal=causal)
    assert budget == pytest.approx(expected.sum() / length, rel=1e-12)


def test_causal_sliding_row_sees_min_of_i_plus_1_and_window():
    mask = numpy_of(lambda: patterns.sliding_window_mask(11, 4, causal=True))
    assert mask.sum(axis=1).tolist() == [min(i + 1, 4) for i in range(11)]


def test_a_window_has_as_many_tokens_as_its_name_says():
    for window in (1, 2, 5, 8):
        mask = numpy_of(lambda w=window: patterns.sliding_window_mask(40, w))
        assert mask[20].sum() == window and mask[20, 20]


@parametrize_size
@parametrize_causal
@parametrize_neighborhood
@pytest.mark.parametrize("exclude_local", [None, 3])
def test_stochastic(length, window, causal, neighborhood, exclude_local):
    permutation = np.random.default_rng(length).permutation(length)
    permutation = permutation.astype("int32")
    slot = np.argsort(permutation)
    options = (window, neighborhood, causal, exclude_local)
    expected = count_mask(
        length, lambda i, j: sees_stochastic(i, j, slot, *options)
    )
    mask = numpy_of(
        lambda order: patterns.stochastic_mask(order, *options), permutation
    )
    np.testing.assert_array_equal(mask, expected)
    neighbors = numpy_of(
        lambda order: patterns.stochastic_neighbors(order, *options),
        permutation,
    )
    assert neighbors.shape == (length, window)
    np.testing.assert_array_equal(
        mask_of_neighbors(neighbors, length), expected
    )


def test_stochastic_mask_takes_leading_axes():
    rng = np.random.default_rng(0)
    order = np.broadcast_to(np.arange(9, dtype="int32"), (2, 3, 9))
    order = rng.permuted(order, axis=-1)
    masks = numpy_of(
        lambda x: patterns.stochastic_mask(x, 4, causal=True), order
    )
    assert masks.shape == (2, 3, 9, 9)
    one = numpy_of(
        lambda x: patterns.stochastic_mask(x, 4, causal=True), order[1, 2]
    )
    np.testing.assert_array_equal(masks[1, 2], one)


@parametrize_causal
@parametrize_neighborhood
@pytest.mark.parametrize("length, window", [(23, 5), (20, 5), (6, 9)])
def test_stochastic_budget_is_the_mean_over_permutations(
    length, window, neighborhood, causal
):
    num_permutations = 400
    rng = np.random.default_rng(3)
    order = np.broadcast_to(
        np.arange(length, dtype="int32"), (num_permutations, length)
    )
    masks = numpy_of(
        lambda x: patterns.stochastic_mask(x, window, neighborhood, causal),
        rng.permuted(order, axis=-1),
    )
    counts = masks.sum(axis=(1, 2)) / length
    budget = patterns.visible_keys_per_token(
        length, window, "stochastic", neighborhood, causal
    )
    error_of_mean = counts.std() / num_permutations**0.5
    assert abs(counts.mean() - budget) <= 5 * error_of_mean + 1e-9


@parametrize_causal
def test_full_budget(causal):
    expected = np.tril(np.ones((9, 9))).sum() / 9 if causal else 9
    assert (
        patterns.visible_keys_per_token(9, 1, "full", causal=causal) == expected
    )


@parametrize_causal
@pytest.mark.parametrize("padded", [False, True])
def test_block_routed(causal, padded):
    batch, length, heads, size = 2, 11, 3, 4
    rng = np.random.default_rng(1)
    routes = rng.random((batch, length, heads, 3)) < 0.5
    real = np.ones((batch, length), bool)
    if padded:
        real[0, :3] = real[1, [1, 5, 10]] = False
    rank = np.cumsum(real, axis=1) - 1
    expected = np.zeros((batch, heads, length, length), bool)
    for b, h, i, j in np.ndindex(expected.shape):
        seen = real[b, i] and real[b, j] and routes[b, i, h, rank[b, j] // size]
        expected[b, h, i, j] = seen and not (causal and j > i)
    mask = numpy_of(
        lambda r, p: patterns.block_routed_mask(
            r, size, p if padded else None, causal
        ),
        routes,
        real,
    )
    np.testing.assert_array_equal(mask, expected)


def test_padding_pairs():
    real = np.array([[True, False, True], [False, False, False]])
    mask = numpy_of(patterns.padding_pairs_mask, real)
    expected = [[[1, 0, 1], [0, 0, 0], [1, 0, 1]], np.zeros((3, 3))]
    np.testing.assert_array_equal(mask, np.array(expected, bool))
