"""Permutations: the same bits everywhere, and random enough."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend as kb
from keras_sa.ops import invert_permutation
from keras_sa.ops import ordering
from keras_sa.ops import sample_permutation
from keras_sa.patterns import permutation as permutations

# Written down once: every backend must agree with them bit for bit.
GOLDEN = {
    0: [0, 3, 2, 7, 10, 8, 6, 1, 11, 4, 5, 9],
    7: [1, 7, 8, 2, 4, 3, 11, 6, 10, 5, 9, 0],
    -1: [9, 2, 1, 5, 0, 11, 6, 8, 3, 4, 10, 7],
    2**31 + 5: [2, 0, 8, 6, 5, 4, 3, 11, 10, 9, 7, 1],
    -(2**31): [1, 4, 11, 10, 2, 8, 9, 6, 7, 0, 3, 5],
}
GOLDEN_HEADS = [
    [5, 2, 1, 4, 3, 7, 0, 9, 6, 10, 11, 8],
    [3, 9, 6, 10, 7, 11, 8, 4, 1, 5, 2, 0],
    [10, 4, 2, 1, 3, 7, 11, 8, 6, 5, 9, 0],
]
SEEDS = [0, 1, 7, 123456789, -1, -(2**31), 2**31 - 1, 2**31 + 5, 2**32 - 1]


def to_numpy(x):
    return np.asarray(ops.convert_to_numpy(x))


def mix(x):
    """triple32 by C. Wellons, on uint32."""
    for shift, multiplier in (
        (17, 0xED5AD4BB),
        (11, 0xAC4C1B51),
        (15, 0x31848BAB),
    ):
        x = x ^ (x >> np.uint32(shift))
        x = x * np.uint32(multiplier)
    return x ^ (x >> np.uint32(14))


def word(x):
    return np.array([int(x) % 2**32], "uint32")


def numpy_hash(seed, counter):
    before = mix(word(seed) ^ word(0x6A09E667))
    after = mix(word(seed) ^ word(0xBB67AE85))
    counter = np.asarray(counter).astype("uint32")
    return mix(mix(counter ^ before) ^ after).view("int32")


def numpy_split(seed, num):
    stream = mix(word(seed) ^ word(0x3C6EF372))
    return numpy_hash(stream[0], np.arange(num))


def numpy_permutation(length, seed):
    return np.argsort(numpy_hash(seed, np.arange(length)), kind="stable")


@pytest.mark.parametrize("seed", GOLDEN)
def test_golden_values(seed):
    assert to_numpy(sample_permutation(12, seed)).tolist() == GOLDEN[seed]


def test_golden_values_per_head():
    heads = to_numpy(sample_permutation(12, 0, num_key_value_heads=3))
    assert heads.tolist() == [GOLDEN_HEADS]


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_the_hash_in_numpy(seed):
    order = sample_permutation(65, seed)
    assert keras.backend.standardize_dtype(order.dtype) == "int32"
    np.testing.assert_array_equal(to_numpy(order), numpy_permutation(65, seed))


def test_split_seed_equals_numpy():
    seeds = to_numpy(permutations.split_seed(-5, 6))
    np.testing.assert_array_equal(seeds, numpy_split(-5, 6))


def test_heads_equal_the_split_seeds():
    heads = to_numpy(sample_permutation(19, 3, num_key_value_heads=4))
    assert heads.shape == (1, 4, 19)
    for head, seed in zip(heads[0], numpy_split(3, 4)):
        np.testing.assert_array_equal(head, numpy_permutation(19, seed))


def test_eager_equals_compiled_with_a_tensor_seed():
    compiled = kb.compile(lambda seed: sample_permutation(33, seed))
    for seed in (0, 5, -9):
        expected = to_numpy(sample_permutation(33, seed))
        tensor = ops.convert_to_tensor(seed, "int32")
        np.testing.assert_array_equal(to_numpy(compiled(tensor)), expected)
        np.testing.assert_array_equal(
            to_numpy(sample_permutation(33, tensor)), expected
        )


def test_a_seed_and_its_low_32_bits_are_one():
    np.testing.assert_array_equal(
        to_numpy(sample_permutation(17, -1)),
        to_numpy(sample_permutation(17, 2**32 - 1)),
    )


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_lengths(length):
    order = to_numpy(sample_permutation(length, 4))
    assert sorted(order.tolist()) == list(range(length))


def test_length_may_be_a_tensor(backend):
    if backend == "jax":
        pytest.skip("shapes are static on JAX")
    order = sample_permutation(ops.convert_to_tensor(21, "int32"), 8)
    np.testing.assert_array_equal(to_numpy(order), numpy_permutation(21, 8))


@pytest.mark.parametrize("seed", [0, 11])
def test_permutations_are_nested(seed):
    """The order of two tokens does not depend on the length."""
    longest = to_numpy(sample_permutation(64, seed))
    for length in (1, 5, 17, 63):
        shorter = to_numpy(sample_permutation(length, seed))
        np.testing.assert_array_equal(longest[longest < length], shorter)


def test_inverse():
    order = sample_permutation(29, 2, num_key_value_heads=3)
    inverse = to_numpy(invert_permutation(order))
    assert inverse.dtype == np.int32
    rows = np.take_along_axis(inverse, to_numpy(order), axis=-1)
    np.testing.assert_array_equal(
        rows, np.broadcast_to(np.arange(29), (1, 3, 29))
    )
    np.testing.assert_array_equal(
        to_numpy(invert_permutation(inverse)), to_numpy(order)
    )


MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
        [0, 1, 1, 0, 1, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
    bool,
)


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_padding_takes_the_last_slots_and_ranks_decide(dtype):
    order = to_numpy(sample_permutation(9, 6, padding_mask=MASK.astype(dtype)))
    assert order.shape == MASK.shape
    for row, mask in zip(order, MASK):
        real, padding = np.flatnonzero(mask), np.flatnonzero(~mask)
        expected = real[numpy_permutation(len(real), 6)]
        np.testing.assert_array_equal(row[: len(real)], expected)
        np.testing.assert_array_equal(row[len(real) :], padding)


def test_left_padding_equals_right_padding():
    order = to_numpy(sample_permutation(9, 6, padding_mask=MASK))
    np.testing.assert_array_equal(order[1, :5], order[2, :5] - 4)
    np.testing.assert_array_equal(
        order[1, :5], to_numpy(sample_permutation(5, 6))
    )


def test_padding_and_heads():
    order = to_numpy(
        sample_permutation(9, 6, padding_mask=MASK, num_key_value_heads=2)
    )
    assert order.shape == (5, 2, 9)
    for head, seed in enumerate(numpy_split(6, 2)):
        one = to_numpy(sample_permutation(9, int(seed), padding_mask=MASK))
        np.testing.assert_array_equal(order[:, head], one)


def test_padding_last_moves_padding_and_keeps_the_order():
    order = np.random.default_rng(0).permutation(9).astype("int32")
    moved = to_numpy(
        permutations.padding_last(
            ops.convert_to_tensor(order), ops.convert_to_tensor(MASK)
        )
    )
    for row, mask in zip(moved, MASK):
        real = [token for token in order if mask[token]]
        padding = [token for token in order if not mask[token]]
        assert row.tolist() == real + padding


def test_sort_blocks():
    order = np.random.default_rng(0).permutation(11).astype("int32")
    blocks = to_numpy(
        ordering.sort_blocks(ops.convert_to_tensor(order), 4)
    ).reshape(3, 4)
    for start, block in zip((0, 4), blocks):
        assert block.tolist() == sorted(order[start : start + 4].tolist())
    assert blocks[2].tolist() == [*sorted(order[8:].tolist()), 11]


@pytest.mark.parametrize("seed", [2**32, -(2**31) - 1, 1.5, True, [1, 2]])
def test_bad_seeds_raise(seed):
    with pytest.raises(ValueError, match="(?s)expected.*Received"):
        sample_permutation(5, seed)


@pytest.mark.parametrize("dtype, shape", [("float32", ()), ("int32", (1,))])
def test_bad_seed_tensors_raise(dtype, shape):
    with pytest.raises(ValueError, match="(?s)expected.*Received"):
        sample_permutation(5, ops.zeros(shape, dtype=dtype))


@pytest.mark.parametrize(
    "arguments",
    [
        {"length": -1},
        {"padding_mask": np.ones((2, 6), bool)},
        {"padding_mask": np.ones(5, bool)},
        {"padding_mask": np.ones((2, 5), "float32")},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": 2.0},
    ],
)
def test_bad_arguments_raise(arguments):
    with pytest.raises(ValueError, match="(?s)expected.*Received"):
        sample_permutation(**{"length": 5, "seed": 0, **arguments})


# Statistics: 16 tokens, 4000 seeds, most of them neighbours of one another,
# compared with as many permutations by numpy.
LENGTH, NUM_SEEDS, NUM_REPLICAS = 16, 4000, 60
# In standard deviations of the same statistic of numpy's permutations.
FAR = 5


def orders_of(seeds):
    """Permutations `[seeds, n]`, in one call."""
    seeds = np.asarray(seeds, "int64").astype("uint32").view("int32")
    hashes = permutations.hash32(
        ops.convert_to_tensor(seeds[:, None]),
        ops.arange(LENGTH, dtype="int32")[None],
    )
    return to_numpy(permutations.order_by(hashes))


@pytest.fixture(scope="module")
def orders():
    return orders_of(np.arange(NUM_SEEDS))


def shuffled(rng):
    order = np.broadcast_to(np.arange(LENGTH), (NUM_SEEDS, LENGTH))
    return rng.permuted(order, axis=-1)


def assert_as_random(statistic, *samples):
    """A statistic of samples looks like that of numpy's permutations."""
    rng = np.random.default_rng(0)
    expected = [
        statistic(*(shuffled(rng) for _ in samples))
        for _ in range(NUM_REPLICAS)
    ]
    distance = statistic(*samples) - np.mean(expected)
    assert abs(distance) <= FAR * np.std(expected), (distance, np.std(expected))


def excess(counts):
    """Pearson's statistic of counts that should be equal."""
    return ((counts - counts.mean()) ** 2).sum() / counts.mean()


def count(*columns):
    """How often each combination of tokens occurs."""
    index = np.ravel_multi_index(columns, (LENGTH,) * len(columns))
    return np.bincount(index.ravel(), minlength=LENGTH ** len(columns))


def test_orders_of_many_seeds_are_those_of_sample_permutation(orders):
    for seed in (0, 17, NUM_SEEDS - 1):
        expected = to_numpy(sample_permutation(LENGTH, seed))
        np.testing.assert_array_equal(orders[seed], expected)


def test_slots_are_uniform(orders):
    def statistic(orders):
        slots = np.broadcast_to(np.arange(LENGTH), orders.shape)
        return excess(count(orders, slots))

    assert_as_random(statistic, orders)


def test_every_position_is_reached(orders):
    for slot in range(LENGTH):
        assert len(np.unique(orders[:, slot])) == LENGTH


def test_pairs_are_uniform(orders):
    def statistic(orders):
        counts = count(orders[:, :-1], orders[:, 1:])
        counts = counts.reshape(LENGTH, LENGTH)
        return excess(counts[~np.eye(LENGTH, dtype=bool)])

    assert_as_random(statistic, orders)


def common_neighbors(first, second):
    """Pairs that are beside each other in both orders, in total."""

    def beside(order):
        table = np.zeros((len(order), LENGTH, LENGTH), bool)
        rows = np.arange(len(order))[:, None]
        table[rows, order[:, :-1], order[:, 1:]] = True
        return table | table.transpose(0, 2, 1)

    return int((beside(first) & beside(second)).sum())


def joint_slots(first, second):
    """Dependence of the slots of a token in both orders."""
    return excess(count(np.argsort(first, axis=1), np.argsort(second, axis=1)))


def concordance(first, second):
    """Pairs of tokens that stand in the same order in both."""
    first, second = np.argsort(first, axis=1), np.argsort(second, axis=1)
    before = [x[:, :, None] < x[:, None, :] for x in (first, second)]
    return int((before[0] == before[1]).sum())


PARTNERS = {
    "next": lambda seeds: seeds + 1,
    "high_bit": lambda seeds: seeds ^ 2**31,
    "complement": lambda seeds: seeds ^ (2**32 - 1),
    "shifted": lambda seeds: seeds ^ (7 << 20),
}


@pytest.mark.parametrize("partner", PARTNERS)
@pytest.mark.parametrize(
    "statistic", [common_neighbors, joint_slots, concordance]
)
def test_seeds_are_independent(orders, partner, statistic):
    others = orders_of(PARTNERS[partner](np.arange(NUM_SEEDS, dtype="int64")))
    assert_as_random(statistic, orders, others)


@pytest.mark.parametrize(
    "statistic", [common_neighbors, joint_slots, concordance]
)
def test_heads_are_independent(statistic):
    seeds = to_numpy(permutations.split_seed(9, 2 * NUM_SEEDS))
    assert len(set(seeds.tolist())) == 2 * NUM_SEEDS
    assert_as_random(statistic, orders_of(seeds[::2]), orders_of(seeds[1::2]))
