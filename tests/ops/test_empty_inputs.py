"""No examples or no tokens: empty outputs, as Keras' layers give them."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend as keras_backend
from keras_sa.ops import dense_attention
from keras_sa.ops import route_to_blocks
from keras_sa.ops.neighbors.api import neighbor_attention
from tests import testing

SIZES = [(0, 9), (2, 0), (0, 0)]
PATHS = {**testing.PATHS, "dense": None}


def make_tensors(batch, length):
    return [
        ops.zeros((batch, length, heads, dim))
        for heads, dim in ((4, 8), (2, 8), (2, 8))
    ]


def attend(path, tensors, **arguments):
    if path == "dense":
        return dense_attention(*tensors, **arguments)
    order = np.arange(tensors[0].shape[1], dtype="int32")
    return testing.PATHS[path](*tensors, order, **arguments)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_output_and_lse_are_empty(path, size):
    tensors = make_tensors(*size)
    assert tuple(attend(path, tensors).shape) == (*size, 4, 8)
    if path != "native_block":
        output, lse = attend(path, tensors, return_lse=True)
        assert tuple(output.shape) == (*size, 4, 8)
        assert tuple(lse.shape) == (*size, 4)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_empty_too(path, size):
    sinks = ops.ones(4)

    def loss(*tensors):
        *tensors, sinks = tensors
        others = {} if path == "native_block" else {"sinks": sinks}
        return ops.sum(attend(path, tensors, **others))

    tensors = [*make_tensors(*size), sinks]
    _, gradients = keras_backend.value_and_gradients(loss)(*tensors)
    for x, gradient in zip(tensors, gradients, strict=True):
        assert tuple(gradient.shape) == tuple(x.shape)
        assert not np.any(ops.convert_to_numpy(gradient))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_weights_and_routes_are_empty(size):
    query, key, value = make_tensors(*size)
    _, weights = dense_attention(query, key, value, return_weights=True)
    assert tuple(weights.shape) == (size[0], 4, size[1], size[1])
    routes = route_to_blocks(query, key, block_size=3, top_k=2)
    assert tuple(routes.shape) == (*size, 4, 2)


@pytest.mark.parametrize(
    "batch, new, neighbors", [(0, 1, 3), (2, 0, 3), (2, 1, 0)]
)
def test_a_step_of_decoding(batch, new, neighbors):
    query = ops.ones((batch, new, 4, 8))
    key = ops.ones((batch, 5, 2, 8))
    rows = ops.zeros((new, neighbors), dtype="int32")
    output = neighbor_attention(query, key, key, rows, scale=0.5)
    assert tuple(output.shape) == (batch, new, 4, 8)
    assert not np.any(ops.convert_to_numpy(output))


def test_a_bad_argument_is_still_refused():
    tensors = make_tensors(0, 9)
    with pytest.raises(ValueError, match="implementation"):
        attend("sliding_window", tensors, implementation="portible")
    with pytest.raises(ValueError, match="window_size"):
        attend("sliding_window", tensors, window_size=0)
    assert keras.backend.standardize_dtype(
        attend("dense", [ops.cast(x, "bfloat16") for x in tensors]).dtype
    ) == ("bfloat16")
