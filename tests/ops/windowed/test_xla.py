"""What is particular to the loop under XLA; its values and gradients are
tested with those of the others in `test_attention_cases.py`."""

import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import dispatch
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from keras_sa.ops.windowed import api
from keras_sa.ops.windowed import chunked
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import portable
from keras_sa.ops.windowed import xla
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="`xla` is for TensorFlow"
)
CASES = {case.name: case for case in testing.CASES}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Few chunks in a step, so that short sequences take several."""
    small = dict.fromkeys(xla.SCORE_BYTES, 2**11)
    monkeypatch.setattr(xla, "SCORE_BYTES", small)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes(dtype):
    testing.assert_case(CASES["sliding-left_sinks"], "xla", dtype)


def make_attend(implementation, **arguments):
    """A causal attention to a random window of 7 slots, length 37."""
    arguments = {"window_size": 7, "is_causal": True, **arguments}
    order = np.random.default_rng(0).permutation(37).astype("int32")

    def attend(query, key, value):
        return stochastic_attention(
            query, key, value, order, implementation=implementation, **arguments
        )

    return attend


def make_tensors(*shape, num=3, dtype="float32"):
    rng = np.random.default_rng(1)
    return [
        ops.convert_to_tensor(rng.normal(size=shape), dtype) for _ in range(num)
    ]


def loss_of(attend):
    return lambda *tensors: ops.sum(attend(*tensors) ** 3)


def gradients_of(function):
    return lambda *x: backend.value_and_gradients(function)(*x)[1]


def assert_same(received, expected):
    for a, b in zip(received, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def program():
    from keras_sa.ops.windowed.xla import tensorflow

    return tensorflow


def compiled(function, jit_compile):
    """Eager for `None`."""
    import tensorflow as tf

    if jit_compile is None:
        return function
    return tf.function(function, jit_compile=jit_compile, autograph=False)


# Memory: what the optimised program of XLA holds.

LENGTH, WINDOW, HEADS, DIM = 4096, 128, 2, 8
SCORES = LENGTH * WINDOW * HEADS  # of blocks; 1.5 times as many of windows


def largest_buffer(function, *tensors):
    """The most elements of an array in the optimised program."""
    program = compiled(function, jit_compile=True)
    text = program.experimental_get_compiler_ir(*tensors)(stage="optimized_hlo")
    shapes = re.findall(r"\b[a-z]+\d*\[(\d[\d,]*)\]", text)
    assert len(shapes) > 10
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def long_attention(implementation, neighborhood, backward):
    order = np.random.default_rng(0).permutation(LENGTH).astype("int32")
    real = np.arange(LENGTH)[None] < LENGTH - 100

    def attend(query, key, value):
        return stochastic_attention(
            query,
            key,
            value,
            order,
            window_size=WINDOW,
            neighborhood=neighborhood,
            is_causal=True,
            padding_mask=real,
            implementation=implementation,
        )

    return gradients_of(loss_of(attend)) if backward else attend


@pytest.mark.parametrize("neighborhood", ["window", "block"])
@pytest.mark.parametrize("backward", [False, True])
def test_no_scores_but_those_of_a_step(neighborhood, backward, monkeypatch):
    steps = dict.fromkeys(xla.SCORE_BYTES, 2**18)
    monkeypatch.setattr(xla, "SCORE_BYTES", steps)
    function = long_attention("xla", neighborhood, backward)
    tensors = make_tensors(1, LENGTH, HEADS, DIM)
    # Groups of 5 chunks borrow 2, the last is filled up, and rolls copy.
    few = 3 * LENGTH * HEADS * DIM
    assert few < SCORES / 5
    assert largest_buffer(function, *tensors) <= few


@pytest.mark.parametrize("backward", [False, True])
def test_the_reader_catches_the_scores_of_portable(backward):
    function = long_attention("portable", "window", backward)
    tensors = make_tensors(1, LENGTH, HEADS, DIM)
    # A head after the other.
    assert largest_buffer(function, *tensors) >= SCORES / HEADS


@pytest.mark.parametrize("reach", [(0, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("most_chunks", [0, 1, 5, 100])
def test_steps_hold_all_groups_and_not_too_many(reach, most_chunks):
    chunks = common.Chunks(4, *reach)
    for num_rows in (1, 3, 40):
        for num_slots in (1, 4, 5, 33, 400):
            groups = program().choose_groups(
                chunks, num_rows, num_slots, most_chunks
            )
            num_groups = num_rows * groups.per_sequence
            assert groups.chunks >= max(reach)
            assert groups.chunks * groups.per_sequence * 4 >= num_slots
            assert num_groups <= groups.steps * groups.rows
            assert groups.steps * groups.rows < num_groups + groups.steps
            step = groups.chunks * groups.rows
            assert step <= max(most_chunks, *reach, 1)


# Where it runs.


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_gradients(order, jit_compile):
    """Eagerly, in a function, and in a function that XLA compiles.

    In float64: the first token attends to itself alone, and what has no
    gradient is rounding, 2,000 times as large after the cube of a cube.
    """
    tensors = make_tensors(2, 37, 2, 4, dtype="float64")

    def run(implementation):
        function = loss_of(make_attend(implementation))
        for _ in range(order - 1):
            gradients = gradients_of(function)
            function = loss_of(lambda *x, g=gradients: ops.concatenate(g(*x)))
        return gradients_of(function)

    received = compiled(run("xla"), jit_compile)(*tensors)
    expected = compiled(run("portable"), False)(*tensors)
    for a, b in zip(received, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_a_persistent_tape():
    import tensorflow as tf

    tensors = make_tensors(2, 37, 2, 4)
    expected = gradients_of(loss_of(make_attend("portable")))(*tensors)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        loss = loss_of(make_attend("xla"))(*tensors)
    for _ in range(2):
        assert_same(tape.gradient(loss, tensors), expected)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_unknown_lengths(jit_compile):
    import tensorflow as tf

    def run(implementation, **arguments):
        def attend(*tensors):
            return sliding_window_attention(
                *tensors,
                window_size=8,
                is_causal=True,
                implementation=implementation,
            )

        function = backend.value_and_gradients(loss_of(attend))
        return tf.function(function, autograph=False, **arguments)

    spec = tf.TensorSpec((None, None, 2, 4))
    function = run("xla", input_signature=[spec] * 3, jit_compile=jit_compile)
    for length in (1, 50):
        tensors = make_tensors(2, length, 2, 4)
        loss, gradients = function(*tensors)
        expected_loss, expected = run("portable")(*tensors)
        assert_same([loss, *gradients], [expected_loss, *expected])


def test_a_shape_is_traced_once(monkeypatch):
    traced = []
    attend_in_slot_order = chunked.attend_in_slot_order

    def spy(*arguments):
        traced.append(arguments)
        return attend_in_slot_order(*arguments)

    monkeypatch.setattr(chunked, "attend_in_slot_order", spy)
    program()._compiled.cache_clear()
    attend = make_attend("xla")
    for _ in range(3):
        attend(*make_tensors(1, 37, 2, 4))
    assert len(traced) == 1


def test_an_empty_batch():
    tensors = make_tensors(0, 37, 2, 4)
    assert make_attend("xla")(*tensors).shape == (0, 37, 2, 4)


def test_a_scale_that_is_a_tensor():
    query, key, value = make_tensors(2, 37, 2, 4)
    scale = ops.convert_to_tensor(0.7)

    def run(implementation):
        def loss(query, scale):
            attend = make_attend(implementation, scale=scale)
            return loss_of(attend)(query, key, value)

        return compiled(gradients_of(loss), False)(query, scale)

    assert_same(run("xla"), run("portable"))


class Attention(keras.layers.Layer):
    def __init__(self, implementation):
        super().__init__()
        self.implementation = implementation
        self.project = keras.layers.Dense(12)

    def call(self, x):
        query, key, value = ops.split(self.project(x)[:, :, None], 3, axis=-1)
        return sliding_window_attention(
            query,
            key,
            value,
            window_size=6,
            implementation=self.implementation,
        )[:, :, 0]


def fitted(implementation, jit_compile):
    """The losses of two epochs; a batch at the end is smaller."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, Attention(implementation)(inputs))
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x = np.random.default_rng(2).normal(size=(6, 20, 4)).astype("float32")
    history = model.fit(x, x, epochs=2, batch_size=4, verbose=0, shuffle=False)
    return history.history["loss"]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit(jit_compile):
    losses = fitted("xla", jit_compile)
    assert losses[1] < losses[0]
    np.testing.assert_allclose(losses, fitted("portable", False), rtol=1e-4)


# When it runs.


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dropout": 0.1, "dropout_seed": 0}, "dropout"),
        ({"attn_logits_soft_cap": np.float32(2)}, "attn_logits_soft_cap"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ValueError, match=f"(?s)`xla` has no {words}.*Received"):
        make_attend("xla", **arguments)(*make_tensors(1, 37, 2, 4))
    make_attend(None, **arguments)(*make_tensors(1, 37, 2, 4))


@pytest.mark.parametrize(
    "device, length, chosen",
    [
        ("GPU", 37, xla),
        ("GPU", None, portable),
        ("CPU", 37, portable),
        ("CPU", 2**24, xla),
        ("CPU", None, portable),
    ],
)
def test_when_it_is_the_default(device, length, chosen, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(
        tf.config,
        "list_physical_devices",
        lambda kind: [kind] if kind == device else [],
    )
    seen = []
    choose = dispatch.choose
    monkeypatch.setattr(
        dispatch,
        "choose",
        lambda *x: seen.append(choose(*x)) or portable,
    )
    spec = tf.TensorSpec((1, length, 2, 4))
    attend = tf.function(lambda *x: sliding_window_attention(*x, window_size=7))
    attend.get_concrete_function(spec, spec, spec)
    assert seen == [chosen]
    assert list(api.IMPLEMENTATIONS["tensorflow"]) == [
        "native_block",
        "xla",
        "portable",
    ]
