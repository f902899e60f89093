"""No windowed op builds an n x n tensor, forward or backward.

JAX shows every intermediate of a program; the ops are written once for all
backends.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import attention
from keras_sa.ops import dense_attention
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing
from tests.jax_programs import intermediates

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="only JAX shows its programs"
)
LENGTH, WINDOW, DIM = 2048, 16, 4


def largest(function, *tensors):
    """The most elements that an intermediate or a constant has."""
    import jax

    closed = jax.make_jaxpr(function)(*tensors)
    shapes = [*intermediates(closed.jaxpr)]
    shapes += [np.shape(constant) for constant in closed.consts]
    assert len(shapes) > 10
    return max(int(np.prod(shape)) for shape in shapes)


def make_tensors():
    x = ops.ones((1, LENGTH, 1, DIM))
    return x, x, x


def loss_of(attend):
    return backend.value_and_gradients(lambda *x: ops.sum(attend(*x) ** 2))


def dense(query, key, value):
    return dense_attention(query, key, value)


PATHS = {
    name: functools.partial(
        attend,
        **(
            {"block_size": WINDOW}
            if name == "block_routed"
            else {"window_size": WINDOW}
        ),
    )
    for name, attend in testing.PATHS.items()
}
PATHS["exclude_local"] = functools.partial(
    PATHS["stochastic_window"], exclude_local=WINDOW
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_no_square(path, is_causal, padded, backward):
    order = np.random.default_rng(0).permutation(LENGTH).astype("int32")
    mask = np.arange(LENGTH)[None] < LENGTH - 100 if padded else None

    def attend(query, key, value):
        return PATHS[path](
            query, key, value, order, is_causal=is_causal, padding_mask=mask
        )

    function = loss_of(attend) if backward else attend
    assert largest(function, *make_tensors()) < LENGTH * LENGTH


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_the_walker_catches_dense_attention(backward, nested):
    function = loss_of(dense) if backward else dense
    function = backend.compile(function) if nested else function
    import jax

    closed = jax.make_jaxpr(function)(*make_tensors())
    sizes = [np.prod(shape) for shape in intermediates(closed.jaxpr)]
    assert max(sizes) >= LENGTH * LENGTH


@pytest.mark.parametrize("path", ["sliding_window", "stochastic_window"])
def test_portable_memory_grows_with_the_window(path):
    """A small multiple of n * w * D, and no multiple of n * n."""
    order = np.arange(LENGTH, dtype="int32")

    def attend(query, key, value):
        return PATHS[path](query, key, value, order, implementation="portable")

    assert largest(loss_of(attend), *make_tensors()) <= 4 * LENGTH * WINDOW


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_a_union_grows_with_its_windows(is_causal, padded, backward):
    length, window = 8192, 16
    pattern = (
        SlidingWindow(window)
        | Stochastic(window)
        | GlobalKeys(first=4)
        | GlobalQueries(last=8)
    )
    mask = np.arange(length)[None] < length - 100 if padded else None

    def attend(query, key, value):
        return attention(
            query,
            key,
            value,
            pattern,
            is_causal=is_causal,
            padding_mask=mask,
        )

    x = ops.ones((1, length, 1, DIM))
    function = loss_of(attend) if backward else attend
    # The parts of the union together, and chunks reach half a window more.
    assert largest(function, x, x, x) <= 4 * length * window


@pytest.mark.parametrize("backward", [False, True])
def test_a_gathered_union_grows_with_its_lists(backward):
    pattern = Stochastic(WINDOW) | Stochastic(WINDOW) | SlidingWindow(WINDOW)

    def attend(query, key, value):
        return attention(query, key, value, pattern, is_causal=True)

    function = loss_of(attend) if backward else attend
    most = 4 * LENGTH * WINDOW * DIM
    assert largest(function, *make_tensors()) <= most < LENGTH**2
