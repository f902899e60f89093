"""What a swapped model never builds."""

import keras
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.hub import decode as decoding
from keras_sa.hub.decode import draw_order
from keras_sa.ops.neighbors.api import neighbor_attention
from tests.hub import models
from tests.jax_programs import intermediates

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="only JAX shows its programs"
)
LENGTH = 8192
PATTERNS = {
    "sliding_window": {"window_size": 16},
    "stochastic": {"window_size": 16},
    "stochastic_block": {
        "mode": "stochastic",
        "window_size": 16,
        "neighborhood": "block",
    },
    "small_world": {"window_size": 16},
    "small_world_softmax": {
        "mode": "small_world",
        "window_size": 16,
        "merge": "softmax",
    },
    "block_routed": {"block_size": 64, "top_k": 2},
}


def shapes_of(function, *tensors):
    import jax

    return list(intermediates(jax.make_jaxpr(function)(*tensors).jaxpr))


def is_square(shape):
    return sum(size >= LENGTH for size in shape) >= 2


def prompt_shapes(model):
    """Of all that is computed while a prompt is read into the cache."""
    token_ids = ops.ones((1, LENGTH), "int32")
    padding_mask = ops.ones((1, LENGTH), "bool")

    def read(token_ids, padding_mask):
        swap = hub.current_swap(model)
        if swap is None:
            return model._build_cache(token_ids)
        with swap._generation.running(padding_mask, {}):
            return model._build_cache(token_ids)

    return shapes_of(read, token_ids, padding_mask)


@pytest.mark.parametrize("name", PATTERNS)
def test_reading_a_prompt_builds_nothing_square(name):
    model = models.build("qwen3")
    with hub.swap_attention(model, **{"mode": name, **PATTERNS[name]}):
        assert not any(is_square(shape) for shape in prompt_shapes(model))


def test_the_model_itself_does():
    """So the test above can fail."""
    model = models.build("qwen3")
    assert any(is_square(shape) for shape in prompt_shapes(model))


def test_a_step_reads_its_window_whatever_the_cache():
    order = draw_order(1, LENGTH)
    query = ops.ones((1, 1, 4, 8))
    cache = ops.ones((1, LENGTH, 2, 8))

    def step(query, key, value, index, *order):
        positions = ops.reshape(index, (1,))
        neighbors = decoding.stochastic_neighbors(
            positions, order, 16, "window"
        )
        return neighbor_attention(query, key, value, neighbors, scale=1.0)

    index = ops.convert_to_tensor(LENGTH - 1, "int32")
    shapes = shapes_of(step, query, cache, cache, index, *order)
    assert len(shapes) > 10
    for shape in shapes:
        assert all(size < LENGTH for size in shape), shape
