"""Masks, lists of neighbors and counts, against plain numpy."""

import dataclasses

import keras
import numpy as np
import pytest
import restated
from keras import ops

from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from keras_sa.patterns import Union
from keras_sa.patterns import check_pattern
from keras_sa.patterns import patterns_by_layer

HEADS = 2
PATTERNS = [
    Full(),
    SlidingWindow(6),
    SlidingWindow(5, dilation=3),
    Stochastic(6),
    Stochastic(5, neighborhood="block"),
    Stochastic(4, permutation_per="head"),
    GlobalKeys(first=3),
    GlobalQueries(last=4),
    GlobalQueries(first=2),
    SlidingWindow(7) | Stochastic(6) | GlobalKeys(2),
    SlidingWindow(4) | SlidingWindow(7) | SlidingWindow(3, dilation=4),
    GlobalQueries(last=2)
    | Stochastic(5)
    | Stochastic(4, "block", "head")
    | SlidingWindow(2),
    GlobalKeys(1) | GlobalQueries(first=1) | GlobalQueries(last=3) | Full(),
    Stochastic(5) | Stochastic(3) | Stochastic(4, neighborhood="block"),
    SlidingWindow(4) + (Stochastic(4) | GlobalKeys(2)) + Stochastic(3),
    Union(Stochastic(3)),
    GatedSum(SlidingWindow(3)),
]
LENGTHS = (0, 1, 2, 5, 6, 7, 13, 67)
if keras.config.backend() == "jax":  # it compiles every operation and length
    LENGTHS = (0, 1, 7, 13)
parametrize_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
parametrize_causal = pytest.mark.parametrize("is_causal", [False, True])


def mask_of(pattern, length, **use):
    """`[K, n, n]`, or `[B, K, n, n]` with a padding mask."""
    mask = pattern.mask(length, num_key_value_heads=HEADS, **use)
    mask = restated.as_numpy(mask)
    if mask.ndim == 2 + ("padding_mask" in use and _has_batch(mask, use)):
        mask = mask[..., None, :, :]
    shape = (*mask.shape[:-3], HEADS, length, length)
    return np.broadcast_to(mask, shape)


def _has_batch(mask, use):
    return mask.ndim >= 3 and mask.shape[0] == len(use["padding_mask"])


@parametrize_causal
@parametrize_pattern
def test_mask_and_neighbors(pattern, is_causal):
    for length in LENGTHS:
        use = {"is_causal": is_causal, "seed": 5}
        expected = restated.mask_of(pattern, length, is_causal, 5, HEADS)
        np.testing.assert_array_equal(
            mask_of(pattern, length, **use), expected, err_msg=f"n = {length}"
        )
        if length == 0:
            continue
        seed = pattern.draw(length, seed=5, num_key_value_heads=HEADS)
        for positions in (None, np.array([length - 1, 0], "int32")):
            rows = slice(None) if positions is None else positions
            neighbors = restated.as_numpy(
                pattern.neighbors(
                    length,
                    is_causal=is_causal,
                    seed=seed,
                    positions=None
                    if positions is None
                    else ops.convert_to_tensor(positions),
                )
            )
            assert neighbors.dtype == "int32"
            found = restated.mask_of_list(neighbors, length)
            found = np.broadcast_to(found, expected[:, rows].shape)
            np.testing.assert_array_equal(found, expected[:, rows])


@parametrize_causal
@parametrize_pattern
def test_bound_patterns_have_all_heads_together(pattern, is_causal):
    use = {"is_causal": is_causal, "seed": 5}
    bound = pattern.bind(**use, num_key_value_heads=HEADS)
    expected = restated.mask_of(pattern, 13, is_causal, 5, HEADS).any(axis=0)
    np.testing.assert_array_equal(restated.as_numpy(bound.mask(13)), expected)
    rows = bound.neighbors(13, ops.convert_to_tensor([4, 12], "int32"))
    assert rows.shape == (2, bound.most_neighbors(13))
    mask = restated.as_numpy(bound.draw(13).mask(13))
    np.testing.assert_array_equal(mask, expected)
    parts = [restated.as_numpy(leaf.mask(13)) for leaf in bound.leaves()]
    np.testing.assert_array_equal(np.any(parts, axis=0), expected)
    dense, rest = bound.split(13)
    whole = restated.mask_of(Full(), 13, is_causal)[0]
    split = whole & dense[:, None]
    if rest is not None:
        split = split | restated.as_numpy(rest.mask(13))
    np.testing.assert_array_equal(split, expected)
    assert bound.keys_per_token(13) == pattern.keys_per_token(
        13, is_causal=is_causal
    )


@parametrize_causal
@parametrize_pattern
def test_padding_changes_nothing_for_real_tokens(pattern, is_causal):
    length = 13
    real = np.ones((4, length), bool)
    real[0, :4] = False  # left
    real[1, 9:] = False  # right
    real[2, [0, 3, 4, 12]] = False
    real[3] = False
    found = mask_of(
        pattern,
        length,
        is_causal=is_causal,
        seed=5,
        padding_mask=ops.convert_to_tensor(real),
    )
    unpadded = restated.mask_of(pattern, 9, is_causal, 5, HEADS)
    for row in (0, 1):
        kept = found[row][:, real[row]][:, :, real[row]]
        np.testing.assert_array_equal(kept, unpadded)
    outside = ~(real[:, :, None] & real[:, None, :])
    assert not (found & outside[:, None]).any()


@parametrize_causal
@parametrize_pattern
def test_keys_per_token(pattern, is_causal):
    terms = getattr(pattern, "terms", (pattern,))
    rng = np.random.default_rng(3)
    for length in (1, 23):
        expected = pattern.keys_per_token(length, is_causal=is_causal)
        counts = [
            sum(
                restated.mask_of(term, length, is_causal, rng, HEADS)
                .mean(axis=0)
                .sum()
                for term in terms
            )
            / length
            for _ in range(200 if pattern.is_random else 1)
        ]
        error = np.std(counts) / len(counts) ** 0.5
        assert abs(np.mean(counts) - expected) <= 4 * error + 1e-9, length
    assert pattern.keys_per_token(0, is_causal=is_causal) == 0


def test_a_window_has_as_many_tokens_as_its_name_says():
    for size in (1, 2, 5, 8):
        mask = restated.as_numpy(SlidingWindow(size).mask(40))
        assert mask[20].sum() == size and mask[20, 20]
    causal = restated.as_numpy(SlidingWindow(4).mask(11, is_causal=True))
    assert causal.sum(axis=1).tolist() == [min(i + 1, 4) for i in range(11)]


def test_first_random_part_has_the_seed_itself():
    """So a stochastic window is the same alone and in a combination."""
    alone = restated.as_numpy(Stochastic(5).mask(20, seed=3))
    window = restated.as_numpy(SlidingWindow(3).mask(20))
    for pattern in (
        Stochastic(5) | SlidingWindow(3),
        SlidingWindow(3) + Stochastic(5),
    ):
        mask = restated.as_numpy(pattern.mask(20, seed=3))
        np.testing.assert_array_equal(mask, alone | window)
    twice = restated.as_numpy((Stochastic(5) | Stochastic(5)).mask(20, seed=3))
    assert twice.sum() > 1.5 * alone.sum()


@parametrize_causal
@pytest.mark.parametrize("padded", [False, True])
def test_block_routed(is_causal, padded):
    batch, length, heads, size = 2, 11, 3, 4
    rng = np.random.default_rng(1)
    chosen = rng.random((batch, length, heads, 3)) < 0.5
    routes = np.where(chosen, np.arange(3), -1).astype("int32")
    real = np.ones((batch, length), bool)
    if padded:
        real[0, :3] = real[1, [1, 5, 10]] = False
    rank = np.cumsum(real, axis=1) - 1
    expected = np.zeros((batch, heads, length, length), bool)
    for b, h, i, j in np.ndindex(expected.shape):
        pair = real[b, i] and real[b, j] and chosen[b, i, h, rank[b, j] // size]
        expected[b, h, i, j] = pair and not (is_causal and j > i)
    use = {"is_causal": is_causal}
    if padded:
        use["padding_mask"] = ops.convert_to_tensor(real)
    pattern = BlockRouted(size, 3)
    mask = pattern.mask(length, routes=routes, **use)
    np.testing.assert_array_equal(restated.as_numpy(mask), expected)
    if padded:
        return
    neighbors = pattern.neighbors(length, routes=routes[0], **use)
    found = restated.mask_of_list(restated.as_numpy(neighbors), length)
    np.testing.assert_array_equal(found, expected[0])
    # Beside another term, whose heads are fewer.
    both = pattern + Stochastic(3, permutation_per="head")
    bound = both.bind(
        **use, routes=routes[0], num_key_value_heads=1, seed=2
    ).mask(length)
    other = restated.mask_of(both.terms[1], length, is_causal, 2, 1)[0]
    np.testing.assert_array_equal(
        restated.as_numpy(bound), expected[0].any(axis=0) | other
    )


def test_keys_of_routed_blocks():
    assert BlockRouted(4, 2).keys_per_token(11) == 8
    # Blocks of 4, 4 and 3: the own one, and one before from the second on.
    expected = (10 + 10 + 4 * 4 + 6 + 3 * 4) / 11
    found = BlockRouted(4, 2).keys_per_token(11, is_causal=True)
    assert found == pytest.approx(expected)


NAMES = {
    x.__name__: x
    for x in (
        BlockRouted,
        Full,
        GatedSum,
        GlobalKeys,
        GlobalQueries,
        SlidingWindow,
        Stochastic,
        Union,
    )
}


@pytest.mark.parametrize(
    "pattern", [*PATTERNS, BlockRouted(4, 2) + SlidingWindow(3)], ids=repr
)
def test_round_trips(pattern):
    assert eval(repr(pattern), NAMES) == pattern
    assert type(pattern).from_config(pattern.get_config()) == pattern
    config = keras.saving.serialize_keras_object(pattern)
    again = keras.saving.deserialize_keras_object(config)
    assert again == pattern and hash(again) == hash(pattern)
    assert len({pattern, again}) == 1


def test_patterns_that_are_not_equal():
    assert len(set(PATTERNS)) == len(PATTERNS)
    assert Stochastic(4) | SlidingWindow(3) != SlidingWindow(3) | Stochastic(4)
    assert SlidingWindow(np.int64(4)) == SlidingWindow(4)


def test_combinations_are_flat():
    a, b, c = SlidingWindow(1), SlidingWindow(2), SlidingWindow(3)
    assert ((a | b) | c).parts == (a | (b | c)).parts == (a, b, c)
    assert ((a + b) + c).terms == (a + (b + c)).terms == (a, b, c)
    assert ((a | b) + c).leaves() == (a, b, c)


@dataclasses.dataclass(frozen=True)
class Returned(Pattern):
    """A pattern of somebody else, which returns what it is told."""

    what: str = "previous"

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        positions = ops.arange(length) if positions is None else positions
        positions = ops.cast(positions, "int32")
        return {
            "previous": ops.stack([positions - 1, positions], axis=1),
            "flat": positions,
            "rows": ops.stack([positions, positions], axis=0),
            "float": ops.cast(positions[:, None], "float32"),
            "large": positions[:, None] + 1,
            "small": positions[:, None] - 2,
        }[self.what]


@parametrize_causal
def test_a_pattern_of_ones_own(is_causal):
    expected = np.eye(7, dtype=bool) | np.eye(7, k=-1, dtype=bool)
    pattern, use = Returned(), {"is_causal": is_causal}
    mask = restated.as_numpy(pattern.mask(7, **use))
    np.testing.assert_array_equal(mask, expected)
    assert pattern.keys_per_token(7, **use) == pytest.approx(13 / 7)
    union = pattern | SlidingWindow(3) | GlobalKeys(1)
    expected = expected | restated.mask_of(union.parts[1], 7, is_causal)[0]
    expected = expected | restated.mask_of(union.parts[2], 7, is_causal)[0]
    mask = restated.as_numpy(union.mask(7, **use))
    np.testing.assert_array_equal(mask, expected)
    keys = union.keys_per_token(7, **use)
    assert keys == pytest.approx(expected.sum() / 7)
    real = np.array([[False, False, True, True, True]])
    mask = pattern.mask(5, padding_mask=ops.convert_to_tensor(real), **use)
    mask = restated.as_numpy(mask)[0]
    np.testing.assert_array_equal(mask[2:, 2:], pattern_of(3))
    assert not mask[:2].any() and not mask[:, :2].any()


def pattern_of(length):
    return np.eye(length, dtype=bool) | np.eye(length, k=-1, dtype=bool)


@pytest.mark.parametrize(
    "what, cure",
    [
        ("flat", r"return \[T, m\] for T positions"),
        ("rows", r"return \[T, m\] for T positions"),
        ("float", "return int32 positions, -1 for nobody"),
        ("large", "positions below length=7.*from 1 to 7"),
        ("small", "positions below length=7.*from -2 to 4"),
    ],
)
def test_neighbors_that_are_none(what, cure):
    for ask in (
        lambda pattern: pattern.mask(7),
        lambda pattern: pattern.keys_per_token(7),
        lambda pattern: pattern.bind().neighbors(7),
    ):
        match = f"`neighbors` is expected to {cure}.*|Received"
        with pytest.raises(ValueError, match=match) as error:
            ask(Returned(what))
        assert "Received: neighbors of Returned" in str(error.value)


def test_a_pattern_without_neighbors():
    @dataclasses.dataclass(frozen=True)
    class Nothing(Pattern):
        pass

    with pytest.raises(NotImplementedError, match="method `neighbors.*Receiv"):
        Nothing().mask(3)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: SlidingWindow(0), "`window_size` is expected"),
        (lambda: SlidingWindow(True), "`window_size` is expected"),
        (lambda: SlidingWindow(4, dilation=0), "`dilation` is expected"),
        (lambda: Stochastic(4, "ring"), "`neighborhood` is expected"),
        (
            lambda: Stochastic(4, permutation_per="query"),
            "`permutation_per` is expected",
        ),
        (lambda: GlobalKeys(0), "`first` is expected"),
        (lambda: GlobalQueries(), "one of `last` and `first`"),
        (lambda: GlobalQueries(1, 2), "one of `last` and `first`"),
        (lambda: BlockRouted(4, 0), "`top_k` is expected"),
        (
            lambda: Full() | (Full() + SlidingWindow(3)),
            "no gated sum inside. Write .a . b. . c with the parentheses",
        ),
        (
            lambda: SlidingWindow(3) | BlockRouted(4, 2),
            r"BlockRouted combines by `\+` alone",
        ),
        (lambda: Union(), "expects a pattern"),
        (lambda: GatedSum(), "expects a pattern"),
        (lambda: Union(Full(), "stochastic"), r"Stochastic\(window_size\)"),
        (lambda: check_pattern("stochastic"), r"Stochastic\(window_size\)"),
        (lambda: check_pattern(Full), "an instance, not the class"),
        (lambda: patterns_by_layer({7: Full()}, range(3)), r"\[7\]"),
        (lambda: patterns_by_layer({True: Full()}, range(3)), r"\[True\]"),
        (lambda: patterns_by_layer({}, range(3)), "an empty dict"),
        (lambda: patterns_by_layer([Full()] * 4, range(3)), "4 patterns"),
        (lambda: patterns_by_layer([], range(3)), "0 patterns"),
        (lambda: patterns_by_layer({0: "full"}, range(3)), r"Full\(\)"),
        (
            lambda: Stochastic(4, permutation_per="head").mask(9),
            "`num_key_value_heads`",
        ),
        (lambda: BlockRouted(4, 2).mask(9), "`routes` is expected"),
        (lambda: Stochastic(4).bind(seed=2**32), "`seed` is expected"),
        (lambda: Stochastic(4).bind(seed=True), "`seed` is expected"),
        (
            lambda: Full().bind(num_key_value_heads=0),
            "`num_key_value_heads` is expected",
        ),
        (lambda: BlockRouted(4, 2).bind(routes=[[1]]), "`routes` is expected"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match) as error:
        make()
    assert "Received" in str(error.value)


def test_operators_take_patterns_only():
    for combine in (lambda: Full() | 3, lambda: "full" + Full()):
        with pytest.raises(TypeError):
            combine()


def test_patterns_by_layer():
    a, b = Stochastic(8), SlidingWindow(8)
    assert patterns_by_layer(a, [1, 3]) == {1: a, 3: a}
    assert patterns_by_layer([a, Full()], range(4)) == {0: a, 2: a}
    assert patterns_by_layer({3: a, 1: b}, range(4)) == {1: b, 3: a}
