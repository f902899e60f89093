"""What is particular to the loop along the slots on JAX; its values and
gradients are tested with those of the others in `test_attention_cases.py`."""

import dataclasses
import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa.ops import dispatch
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from keras_sa.ops.windowed import api
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import looped
from keras_sa.ops.windowed import portable
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="`looped` is for JAX"
)
CASES = {case.name: case for case in testing.CASES}
LENGTH = 37


def program():
    from keras_sa.ops.windowed.looped import jax

    return jax


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Few chunks in a step, so that short sequences take several."""
    small = dict.fromkeys(looped.SCORE_BYTES, 2**11)
    monkeypatch.setattr(looped, "SCORE_BYTES", small)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes(dtype):
    testing.assert_case(CASES["sliding-left_sinks"], "looped", dtype)


def make_attend(implementation, **arguments):
    """A causal attention to a random window of 7 slots."""
    arguments = {"window_size": 7, "is_causal": True, **arguments}
    order = np.random.default_rng(0).permutation(LENGTH).astype("int32")

    def attend(query, key, value):
        return stochastic_attention(
            query, key, value, order, implementation=implementation, **arguments
        )

    return attend


def make_tensors(*shape, num=3):
    rng = np.random.default_rng(1)
    return [
        ops.convert_to_tensor(rng.normal(size=shape), "float32")
        for _ in range(num)
    ]


def loss_of(attend):
    return lambda *tensors: ops.sum(attend(*tensors) ** 3)


def assert_same(received, expected):
    import jax

    received, expected = (jax.tree.leaves(x) for x in (received, expected))
    for a, b in zip(received, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def derivatives(attend):
    """What JAX derives of a function, by name."""
    import jax

    loss, tensors = loss_of(attend), make_tensors(2, LENGTH, 2, 4)
    batch = [ops.stack([x, x + 1, x * 2]) for x in tensors]
    gradient = jax.grad(loss, (0, 1, 2))
    squares = jax.grad(lambda *x: sum(ops.sum(g**2) for g in gradient(*x)))
    return {
        "forward mode": lambda: jax.jvp(loss, tensors, tensors),
        "gradient of a gradient": lambda: squares(*tensors),
        "of a batch": lambda: jax.vmap(attend)(*batch),
        "gradient of a batch": lambda: jax.vmap(gradient)(*batch),
        "with rematerialisation": lambda: jax.grad(jax.checkpoint(loss))(
            *tensors
        ),
    }


@pytest.mark.parametrize("name", derivatives(lambda *x: x[0]))
def test_transformations(name):
    received = derivatives(make_attend("looped"))[name]()
    expected = derivatives(make_attend("portable"))[name]()
    assert_same(received, expected)


def test_a_shape_is_traced_once(monkeypatch):
    traced = []
    attend = program()._attend
    monkeypatch.setattr(
        program(), "_attend", lambda *x: traced.append(x) or attend(*x)
    )
    program()._compiled.cache_clear()
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(LENGTH).astype("int32")
        stochastic_attention(
            *make_tensors(1, LENGTH, 2, 4),
            order,
            window_size=7,
            implementation="looped",
        )
    assert len(traced) == 1


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_example_does_not_spoil_the_next(is_causal):
    query, key, value = make_tensors(3, LENGTH, 2, 4)
    spoiled = np.array(value)
    spoiled[1] = np.inf

    def attend(value):
        return sliding_window_attention(
            query,
            key,
            value,
            window_size=7,
            is_causal=is_causal,
            implementation="looped",
        )

    received = attend(spoiled)
    assert np.isnan(received[1]).any() or np.isinf(received[1]).any()
    np.testing.assert_array_equal(received[::2], attend(value)[::2])


# Steps.


def choose(batch, length, heads, chunks, score_bytes):
    arguments = types_of(batch, length, heads)
    return program().choose_steps(arguments, chunks, score_bytes)


def types_of(batch, length, heads):
    x = ops.zeros((batch, length, heads, 1))
    fields = {
        field.name: None for field in dataclasses.fields(api.WindowedArguments)
    }
    return api.WindowedArguments(**{**fields, "query": x, "key": x, "value": x})


@pytest.mark.parametrize("reach", [(0, 0), (1, 1), (2, 0), (0, 3)])
@pytest.mark.parametrize("most", [0, 1, 5, 100])
def test_steps_hold_all_chunks_and_not_too_many(reach, most):
    chunks = common.Chunks(4, *reach)
    heads, of_a_chunk = 3, 3 * 4 * chunks.keys * 4
    for batch in (1, 3, 40):
        for length in (1, 4, 5, 33, 400):
            steps = choose(batch, length, heads, chunks, most * of_a_chunk)
            num_chunks = -(-length // 4)
            step = steps.chunks * steps.examples
            assert step <= max(most, chunks.after, 1)
            assert steps.chunks * steps.per_example >= num_chunks
            # No step is for nothing.
            assert steps.chunks * (steps.per_example - 1) < num_chunks
            assert batch * steps.per_example == steps.examples * steps.number
            assert steps.examples == 1 or steps.per_example == 1


def test_short_texts_share_a_step():
    steps = choose(12, 8, 1, common.Chunks(4, 0, 0), 10 * 4 * 4 * 4)
    assert steps == program().Steps(2, 4, 1, 3)


# Memory: what the optimised program holds.


@pytest.fixture
def large_steps(monkeypatch):
    large = dict.fromkeys(looped.SCORE_BYTES, 2**18)
    monkeypatch.setattr(looped, "SCORE_BYTES", large)


@pytest.mark.parametrize("neighborhood", ["window", "block"])
@pytest.mark.parametrize("backward", [False, True])
def test_no_scores_but_those_of_a_step(neighborhood, backward, large_steps):
    length, window, heads, dim = 4096, 128, 2, 8
    order = np.random.default_rng(0).permutation(length).astype("int32")

    def largest(implementation):
        def attend(*tensors):
            return stochastic_attention(
                *tensors,
                order,
                window_size=window,
                neighborhood=neighborhood,
                is_causal=True,
                padding_mask=np.arange(length)[None] < length - 100,
                implementation=implementation,
            )

        return largest_buffer(attend, backward, (1, length, heads, dim))

    # Slots that fill the last step, and a step's worth of scores.
    assert largest("looped") <= 1.2 * length * heads * dim
    assert largest("portable") >= length * window * heads


@pytest.mark.parametrize("backward", [False, True])
def test_a_sliding_window_copies_nothing(backward, large_steps):
    """An axis of one example in what the loop reads would make XLA copy it."""
    import jax

    shape = (1, 2**14, 2, 64)

    def attend(*tensors):
        return sliding_window_attention(
            *tensors, window_size=64, is_causal=True, implementation="looped"
        )

    function = jax.grad(loss_of(attend), (0, 1, 2)) if backward else attend
    compiled = jax.jit(function).lower(*[np.zeros(shape, "float32")] * 3)
    held = compiled.compile().memory_analysis().temp_size_in_bytes
    # The backward pass keeps the gradient of the output and what was borrowed.
    assert held <= (3 if backward else 0.2) * 4 * math.prod(shape)


def largest_buffer(attend, backward, shape):
    """The most elements of an array in the optimised program."""
    import jax

    function = jax.grad(loss_of(attend), (0, 1, 2)) if backward else attend
    tensors = [jax.ShapeDtypeStruct(shape, "float32")] * 3
    text = jax.jit(function).lower(*tensors).compile().as_text()
    shapes = re.findall(r"\b[a-z]+\d*\[(\d[\d,]*)\]", text)
    assert len(shapes) > 10
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


# When it runs.


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dropout": 0.1, "dropout_seed": 0}, "dropout"),
        ({"attn_logits_soft_cap": np.float32(2)}, "attn_logits_soft_cap"),
    ],
)
def test_refusals(arguments, words):
    message = f"(?s)`looped` has no {words}.*Received"
    with pytest.raises(ValueError, match=message):
        make_attend("looped", **arguments)(*make_tensors(1, LENGTH, 2, 4))
    make_attend(None, **arguments)(*make_tensors(1, LENGTH, 2, 4))


@pytest.mark.parametrize("length, chosen", [(100, looped), (37, portable)])
def test_it_is_the_default_for_some_steps(length, chosen, monkeypatch):
    assert chosen_for((1, length, 2, 4), monkeypatch) == [chosen]


def test_unknown_sizes_are_left_to_the_portable_path(monkeypatch):
    import jax

    (length,) = jax.export.symbolic_shape("n")
    assert chosen_for((1, length, 2, 4), monkeypatch) == [portable]


def chosen_for(shape, monkeypatch):
    import jax

    seen = []
    choose = dispatch.choose
    monkeypatch.setattr(
        dispatch, "choose", lambda *x: seen.append(choose(*x)) or portable
    )
    monkeypatch.setattr(portable, "forward", lambda arguments: arguments.value)
    jax.eval_shape(
        lambda x: sliding_window_attention(x, x, x, window_size=7),
        jax.ShapeDtypeStruct(shape, "float32"),
    )
    return seen
