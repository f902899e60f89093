"""`ops.attention`: every pattern against the dense oracle under its mask."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa.ops import attention
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing
from tests.ops import attention_cases as cases

EVERYTHING = (
    SlidingWindow(5)
    | Stochastic(6)
    | GlobalKeys(first=3)
    | GlobalQueries(last=4)
)
GATED = (Stochastic(6) | GlobalKeys(first=3)) + SlidingWindow(5)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """JAX keeps what it compiled: gigabytes, for as many large programs."""
    yield
    if keras.config.backend() == "jax":
        import jax

        jax.clear_caches()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", cases.PATTERNS)
def test_value_and_gradients(name, is_causal):
    """In one batch: without padding, padded right and padded left."""
    pattern = cases.PATTERNS[name]
    tensors = cases.make_tensors(pattern, 23, "right and left")
    cases.assert_equals_oracle(pattern, tensors, is_causal=is_causal)


@pytest.mark.parametrize("name", ["Full()", "BlockRouted(4, 2)"])
@pytest.mark.parametrize("pattern", [EVERYTHING, GATED], ids=str)
def test_the_dense_implementation(pattern, name):
    for each in (pattern, cases.PATTERNS[name]):
        tensors = cases.make_tensors(each, 13, "left", sinks=True)
        cases.assert_equals_oracle(
            each, tensors, implementation="dense", is_causal=True
        )


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 6, 7, 16, 31, 32, 67])
@pytest.mark.parametrize("pattern", [EVERYTHING, GATED], ids=str)
def test_any_length(pattern, length):
    tensors = cases.make_tensors(pattern, length)
    cases.assert_equals_oracle(pattern, tensors, is_causal=length % 2 == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "ragged", "sinks": True},
        {"padding": "empty", "sinks": True},
        {"masked": True},
        {"masked": True, "padding": "left", "sinks": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "pattern",
    [
        EVERYTHING,
        GATED,
        Stochastic(4, permutation_per="head") | Stochastic(3) | GlobalKeys(2),
        SlidingWindow(3, dilation=4) | SlidingWindow(2) | GlobalQueries(last=2),
        cases.Mirror(2) | GlobalKeys(first=2),
    ],
    ids=str,
)
def test_masks_sinks_and_soft_caps(pattern, options):
    tensors = cases.make_tensors(pattern, 19, **options)
    cases.assert_equals_oracle(
        pattern,
        tensors,
        is_causal=options.get("padding") in ("ragged", "left"),
        attn_logits_soft_cap=2.0,
        scale=0.7,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("pattern", [EVERYTHING, GATED], ids=str)
def test_half_precision(pattern, dtype):
    tensors = cases.make_tensors(pattern, 19, "left")
    for name, x in tensors.differentiable.items():
        tensors.differentiable[name] = testing.round_to(x, dtype)
    cases.assert_equals_oracle(pattern, tensors, dtype, is_causal=True)


def run(pattern, length=40, seed=5, **options):
    tensors = cases.make_tensors(pattern, length)
    x = [
        ops.convert_to_tensor(x, "float32")
        for x in tensors.differentiable.values()
    ]

    def compute(query, key, value):
        return attention(query, key, value, pattern, seed=seed, **options)

    if "dropout" not in options:  # of many seeds, with the same operations
        compute = testing.compiled_on_jax(compute)
    return ops.convert_to_numpy(compute(*x[:3]))


def test_another_seed_is_another_permutation():
    assert np.abs(run(EVERYTHING) - run(EVERYTHING, seed=6)).max() > 0.01
    window = SlidingWindow(5) | GlobalKeys(first=2)
    np.testing.assert_array_equal(run(window), run(window, seed=6))


def test_random_parts_have_permutations_of_their_own():
    one = run(Stochastic(6))
    assert np.abs(one - run(Stochastic(6) | Stochastic(6))).max() > 0.01


def test_a_sparse_result_differs_from_the_dense_one():
    full = run(SlidingWindow(100))
    for name in ("WINDOW", "DILATED", "RANDOM", "BLOCKS", "FIRST", "QUESTION"):
        assert np.abs(full - run(getattr(cases, name))).max() > 0.01, name
    assert np.abs(full - run(EVERYTHING)).max() > 0.01


@pytest.mark.parametrize("pattern", [EVERYTHING, cases.Mirror(2)], ids=str)
def test_dropout_keeps_the_mean(pattern):
    runs = [
        run(pattern, dropout=0.5, dropout_seed=seed, is_causal=True)
        for seed in range(30)
    ]
    assert np.abs(runs[0] - runs[1]).max() > 0.01
    mean, expected = np.mean(runs, axis=0), run(pattern, is_causal=True)
    assert np.abs(mean - expected).mean() < 0.2
    assert np.corrcoef(mean.ravel(), expected.ravel())[0, 1] > 0.9


def test_dropout_is_another_one_in_each_part():
    """Two windows over the same keys drop different ones."""
    generator = keras.random.SeedGenerator(3)
    pattern = SlidingWindow(5) + SlidingWindow(5)
    x = ops.ones((1, 30, 2, 4))
    gates = [ops.ones((1, 30, 2, 1)), -ops.ones((1, 30, 2, 1))]
    for seed in (3, generator):
        difference = attention(
            x,
            x,
            x,
            pattern,
            gates=gates,
            dropout=0.5,
            dropout_seed=seed,
        )
        assert np.abs(ops.convert_to_numpy(difference)).max() > 0.1


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: attention(x, x, x, "stochastic"), "Stochastic(window_size)"),
        (lambda x: attention(x, x, x, SlidingWindow), "not the class"),
        (
            lambda x: attention(x, x, x, Stochastic(3) + SlidingWindow(3)),
            "list of 2 tensors",
        ),
        (
            lambda x: attention(
                x, x, x, Stochastic(3) + SlidingWindow(3), gates=[x]
            ),
            "1 gates",
        ),
        (lambda x: attention(x, x, x, Stochastic(3), gates=[x]), "gated sum"),
        (
            lambda x: attention(
                x,
                x,
                x,
                Stochastic(3) + SlidingWindow(3),
                gates=[x, x],
                return_lse=True,
            ),
            "no log-sum-exp",
        ),
        (
            lambda x: attention(
                x, x, x, SlidingWindow(3), implementation="fastest"
            ),
            "fastest",
        ),
        (
            lambda x: attention(
                x, x, x, BlockRouted(3, 2), implementation="native_block"
            ),
            "BlockRouted",
        ),
        (
            lambda x: attention(x, x, x, SlidingWindow(3), scale=-1.0),
            "`scale`",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match="Received: ") as error:
        call(ops.ones((1, 6, 2, 4)))
    assert words in str(error.value)


class Wrong(cases.Mirror):
    """Neighbors that are not as they should be."""

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        return WRONG[self.width](length)


WRONG = {
    2: lambda length: ops.zeros((length,), "int32"),
    3: lambda length: ops.zeros((length + 1, 2), "int32"),
    4: lambda length: ops.zeros((length, 2), "float32"),
    5: lambda length: ops.full((length, 2), length, "int32"),
    6: lambda length: ops.full((length, 2), -2, "int32"),
}


@pytest.mark.parametrize("width", WRONG)
def test_neighbors_that_are_wrong(width):
    x = ops.ones((1, 9, 2, 4))
    with pytest.raises(ValueError, match="`neighbors` is expected"):
        attention(x, x, x, Wrong(width))


def test_named_implementation_never_falls_back():
    pattern = SlidingWindow(3) | Stochastic(4, neighborhood="block")
    with pytest.raises(ValueError, match="native_block"):
        run(pattern, implementation="native_block")


def test_unknown_length():
    if keras.config.backend() != "tensorflow":
        pytest.skip("only TensorFlow has unknown lengths")
    import tensorflow as tf

    spec = tf.TensorSpec((None, None, 4, 6), "float32")
    for pattern in (
        EVERYTHING,
        cases.PER_HEAD | cases.BLOCKS | cases.DILATED,
        cases.Mirror(2) | GlobalQueries(first=2),
    ):

        @tf.function(input_signature=[spec], reduce_retracing=True)
        def compiled(x, pattern=pattern):
            return attention(x, x, x, pattern, seed=5, is_causal=True)

        for length in (3, 17):
            x = tf.random.normal((2, length, 4, 6), seed=1)
            expected = attention(x, x, x, pattern, seed=5, is_causal=True)
            np.testing.assert_allclose(
                compiled(x), expected, atol=2e-6, err_msg=str(pattern)
            )


def test_a_subclass_may_have_other_neighbors():
    """It is computed by them, and no window is left out for its sake."""

    class Reversed(SlidingWindow):
        def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
            if positions is None:
                positions = ops.arange(length, dtype="int32")
            return (length - 1 - positions)[:, None]

        def mask(self, length, **use):
            return Pattern.mask(self, length, **use)

    for pattern in (Reversed(9), Reversed(9) | SlidingWindow(3)):
        tensors = cases.make_tensors(pattern, 11)
        cases.assert_equals_oracle(pattern, tensors)
