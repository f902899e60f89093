"""What a swapped model never builds."""

import dataclasses

import keras
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.hub.decode import neighbors_of_terms
from keras_sa.ops import neighbor_attention
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models
from tests.jax_programs import intermediates

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="only JAX shows its programs"
)
LENGTH = 8192
PATTERNS = (
    SlidingWindow(16),
    Stochastic(16, neighborhood="block", permutation_per="head"),
    Stochastic(16) + SlidingWindow(16, dilation=4),
    SlidingWindow(16)
    | Stochastic(16)
    | GlobalKeys(first=4)
    | GlobalQueries(last=16),
    BlockRouted(64, 2),
)


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


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_reading_a_prompt_builds_nothing_square(pattern):
    model = models.build("qwen3")
    with hub.swap_attention(model, pattern):
        assert not any(is_square(shape) for shape in prompt_shapes(model))


def test_the_model_itself_does():
    """So the test above can fail."""
    model = models.build("qwen3")
    assert any(is_square(shape) for shape in prompt_shapes(model))


@pytest.mark.parametrize("permutation_per", ["layer", "head"])
def test_a_step_reads_its_keys_whatever_the_cache(permutation_per):
    import jax

    pattern = Stochastic(16, permutation_per=permutation_per)
    pattern = pattern | SlidingWindow(16) | GlobalKeys(first=4)
    drawn = pattern.draw(LENGTH, seed=1, num_key_value_heads=2)
    tensors = [getattr(drawn[0], x) for x in ("permutation", "slot_of")]
    query = ops.ones((1, 1, 4, 8))
    cache = ops.ones((1, LENGTH, 2, 8))

    def step(query, key, value, index, *permutation):
        stochastic = dataclasses.replace(
            drawn[0], **dict(zip(("permutation", "slot_of"), permutation))
        )
        seed = type(drawn)((stochastic, *drawn[1:]))
        positions = ops.reshape(index, (1,))
        [neighbors] = neighbors_of_terms(pattern, seed, LENGTH, positions)
        return neighbor_attention(query, key, value, neighbors, scale=1.0)

    index = ops.convert_to_tensor(LENGTH - 1, "int32")
    jax.block_until_ready(tensors)
    shapes = shapes_of(step, query, cache, cache, index, *tensors)
    assert len(shapes) > 10
    # A table of permutations may be laid out flat.
    tables = {(2 * LENGTH,)} if permutation_per == "head" else {(LENGTH,)}
    for shape in shapes:
        assert shape in tables or all(size < LENGTH for size in shape), shape
