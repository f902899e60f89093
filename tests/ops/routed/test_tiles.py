"""Some tiles at a time against all at once."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import block_routed_attention
from keras_sa.ops.routed import attend
from tests import testing

MODULE = backend.module()
QUERIES, BLOCKS, SIZE, DIM, VALUE_DIM = 12, 4, 3, 5, 6
BLOCK = np.array([0, 0, 1, 1, 1, 2, 2], "int32")  # nobody reads the last
TILES, ROWS = len(BLOCK), 2


def make_tensors():
    random = np.random.default_rng(0)
    shapes = ((QUERIES, DIM), (BLOCKS, SIZE, DIM), (BLOCKS, SIZE, VALUE_DIM))
    tensors = [random.normal(size=shape) for shape in shapes]
    row = random.integers(0, QUERIES, (TILES, ROWS)).astype("int32")
    return [ops.convert_to_tensor(x, "float32") for x in tensors], row


def make_visible(shape):
    if shape is None:
        return None
    visible = np.random.default_rng(1).random(shape) < 0.6
    visible[:, 0] = False  # a row that sees nothing
    return ops.convert_to_tensor(visible)


def sums_and_gradients(tensors, row, visible):
    """numpy: merged attention and its gradients for all three tensors."""

    def loss(query, key, value):
        highest, total, weighted = attend.attend_to_tiles(
            query,
            key,
            value,
            ops.convert_to_tensor(row),
            ops.convert_to_tensor(BLOCK),
            visible,
            scale=0.7,
        )
        factor = ops.exp(highest - ops.amax(highest))
        result = ops.concatenate([factor * total, factor * weighted], axis=-1)
        return ops.sum(ops.sin(result)), result

    run = backend.compile(backend.value_and_gradients(loss))
    (_, result), gradients = run(*tensors)
    return [
        np.asarray(ops.convert_to_numpy(ops.stop_gradient(x)))
        for x in (result, *gradients)
    ]


@pytest.mark.parametrize("tiles_at_a_time", [1, 3, 100])
@pytest.mark.parametrize(
    "shape",
    [None, (1, ROWS, SIZE), (TILES, 1, SIZE), (TILES, ROWS, SIZE)],
    ids=str,
)
def test_equals_all_at_once(monkeypatch, tiles_at_a_time, shape):
    tensors, row = make_tensors()
    visible = make_visible(shape)
    monkeypatch.setattr(MODULE, "_SCORES", tiles_at_a_time * ROWS * SIZE)
    received = sums_and_gradients(tensors, row, visible)
    monkeypatch.setattr(MODULE, "takes_tiles", lambda *_: False)
    expected = sums_and_gradients(tensors, row, visible)
    for one, other in zip(received, expected):
        assert np.all(np.isfinite(one))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_a_cpu_computes_some_at_a_time(monkeypatch):
    calls = []
    attend = MODULE.attend_to_tiles
    monkeypatch.setattr(
        MODULE, "attend_to_tiles", lambda *x: calls.append(x[-1]) or attend(*x)
    )
    x = ops.ones((1, 24, 2, 4))
    block_routed_attention(x, x, x, block_size=4, top_k=2, is_causal=True)
    own, routed = calls
    assert tuple(own.shape) == (1, 4, 4)  # one mask for all blocks
    assert routed is None  # blocks of the past are full
    calls.clear()
    block_routed_attention(x, x, x, block_size=4, top_k=2)
    assert calls == [None, None]


def test_second_derivatives():
    """Of the gradient's length, against the difference quotient."""
    x = np.random.default_rng(2).normal(size=(1, 12, 1, 4))
    direction = np.random.default_rng(3).normal(size=x.shape)

    def length(x):
        def loss(x):
            output = block_routed_attention(
                x, x, x, block_size=3, top_k=2, is_causal=True
            )
            return ops.sum(output**3)  # `ops.sin` is in float32

        if keras.config.backend() == "jax":
            import jax

            return ops.sum(jax.grad(loss)(x) ** 2)
        if keras.config.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                tape.watch(x)
                result = loss(x)
            return ops.sum(tape.gradient(result, x) ** 2)
        import torch

        (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return ops.sum(gradient**2)

    with backend.float64():
        x = ops.convert_to_tensor(x, "float64")
        direction = ops.convert_to_tensor(direction, "float64")
        run = testing.compiled_on_jax(backend.value_and_gradients(length))
        _, (gradient,) = run(x)
        step = 1e-5
        high, low = (
            ops.stop_gradient(run(x + sign * step * direction)[0])
            for sign in (1, -1)
        )
        slope = float(ops.sum(gradient * direction))
        quotient = float(high - low) / (2 * step)
    assert abs(slope - quotient) <= 1e-6 * max(1, abs(quotient))


@pytest.mark.parametrize("columns", [5, 200])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k(columns, k):
    x = np.random.default_rng(4).normal(size=(7, columns)).astype("float32")
    values, indices = backend.top_k(ops.convert_to_tensor(x), k)
    expected = np.argsort(-x, axis=-1)[:, :k]
    np.testing.assert_array_equal(ops.convert_to_numpy(indices), expected)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(values), np.take_along_axis(x, expected, -1)
    )
