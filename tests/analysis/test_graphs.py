"""The graph of every pattern is the mask of the op it describes."""

import numpy as np
import pytest
from keras import ops
from keras import random

import keras_sa
from keras_sa import analysis
from keras_sa import patterns
from keras_sa.patterns import permutation

LENGTHS = (1, 2, 25)


def routed(length, is_causal):
    query = random.normal((1, length, 4, 8), seed=1)
    key = random.normal((1, length, 2, 8), seed=2)
    blocks = keras_sa.ops.route_to_blocks(
        query, key, block_size=6, top_k=3, is_causal=is_causal
    )
    return patterns.BlockRouted(6, 3).bind(
        routes=blocks[0], is_causal=is_causal
    )


PATTERNS = {
    "full": lambda n, is_causal: patterns.Full().bind(is_causal=is_causal),
    "sliding_window": lambda n, is_causal: patterns.SlidingWindow(6).bind(
        is_causal=is_causal
    ),
    "stochastic": lambda n, is_causal: patterns.Stochastic(6).bind(
        seed=3, is_causal=is_causal
    ),
    "stochastic_block": lambda n, is_causal: patterns.Stochastic(
        6, neighborhood="block"
    ).bind(seed=3, is_causal=is_causal),
    "stochastic_heads": lambda n, is_causal: patterns.Stochastic(
        6, permutation_per="head"
    ).bind(seed=3, is_causal=is_causal, num_key_value_heads=3),
    "small_world": lambda n, is_causal: (
        patterns.Stochastic(5) | patterns.SlidingWindow(4)
    ).bind(seed=3, is_causal=is_causal),
    "small_world_block": lambda n, is_causal: (
        patterns.Stochastic(5, neighborhood="block", permutation_per="head")
        | patterns.SlidingWindow(5)
    ).bind(seed=3, is_causal=is_causal, num_key_value_heads=2),
    "block_routed": routed,
}
parametrize_causal = pytest.mark.parametrize("is_causal", [False, True])


def dense(graph):
    graph.check_format()
    return graph.toarray()


@pytest.mark.parametrize("length", LENGTHS)
@parametrize_causal
@pytest.mark.parametrize("name", PATTERNS)
def test_graph_is_the_mask_of_the_pattern(name, is_causal, length):
    pattern = PATTERNS[name](length, is_causal)
    graph = analysis.attention_graph(pattern, length)
    mask = ops.convert_to_numpy(pattern.mask(length))
    np.testing.assert_array_equal(dense(graph), mask)
    assert graph.diagonal().all()


LAYERS = {
    "sliding_window": lambda: keras_sa.SlidingWindowAttention(4, 8, 5),
    "stochastic": lambda: keras_sa.StochasticAttention(4, 8, 5, seed=7),
    "stochastic_seed": lambda: keras_sa.StochasticAttention(
        4, 8, 5, neighborhood="block", seed=2**32 - 1
    ),
    "stochastic_heads": lambda: keras_sa.StochasticAttention(
        4, 8, 5, num_key_value_heads=2, permutation_per="head", seed=7
    ),
    "small_world": lambda: keras_sa.SmallWorldAttention(
        4, 8, 5, local_window_size=3, seed=7
    ),
    "small_world_softmax": lambda: keras_sa.SmallWorldAttention(
        4, 8, 5, merge="softmax", permutation_per="head", seed=7
    ),
    "block_routed": lambda: keras_sa.MixtureOfBlockAttention(
        4, 8, 5, 3, num_key_value_heads=2
    ),
}


@parametrize_causal
@pytest.mark.parametrize("name", LAYERS)
def test_graph_of_a_layer_is_who_has_a_score(name, is_causal):
    layer, length = LAYERS[name](), 33
    inputs = random.normal((1, length, 16), seed=0)
    _, scores = layer(
        inputs, inputs, return_attention_scores=True, use_causal_mask=is_causal
    )
    scores = ops.convert_to_numpy(scores)
    pattern = layer.attention_pattern(is_causal=is_causal, inputs=inputs)
    graph = analysis.attention_graph(pattern, length)
    np.testing.assert_array_equal(dense(graph), (scores > 0).any(axis=(0, 1)))


@pytest.mark.parametrize(
    "name, is_causal",
    [
        ("stochastic_heads", False),
        ("small_world_softmax", True),
        ("block_routed", True),
    ],
)
def test_graph_of_a_layer_is_what_moves_its_output(name, is_causal):
    """Through the fast implementation, which has no scores."""
    layer, length = LAYERS[name](), 17
    inputs = random.normal((1, length, 16), seed=0)
    layer.build(inputs.shape, inputs.shape, inputs.shape)
    if name == "block_routed":  # values alone, which choose no blocks
        pattern = layer.attention_pattern(is_causal=is_causal, inputs=inputs)
    else:
        pattern = layer.attention_pattern(is_causal=is_causal)
    mask = dense(analysis.attention_graph(pattern, length))
    # Every example of the batch has another value at one of the tokens.
    moved = inputs + ops.eye(length)[:, :, None]
    repeated = ops.repeat(inputs, length, axis=0)
    output = layer(repeated, moved, key=repeated, use_causal_mask=is_causal)
    still = layer(inputs, inputs, key=inputs, use_causal_mask=is_causal)
    change = ops.convert_to_numpy(ops.amax(ops.abs(output - still), axis=-1))
    np.testing.assert_array_equal(change.T > 1e-6, mask)


def test_graph_of_a_stack_is_the_union():
    stack = [
        patterns.SlidingWindow(3).bind(is_causal=True),
        patterns.Stochastic(4).bind(seed=1, is_causal=True),
        (patterns.Stochastic(3) | patterns.SlidingWindow(3)).bind(
            seed=2, is_causal=True
        ),
    ]
    union = dense(analysis.attention_graph(stack, 50))
    parts = [dense(graph) for graph in analysis.attention_graphs(stack, 50)]
    assert len(parts) == 3
    np.testing.assert_array_equal(union, np.any(parts, axis=0))


def test_graph_does_not_depend_on_how_many_rows_are_made_at_a_time(monkeypatch):
    stack = [
        (patterns.Stochastic(5) | patterns.SlidingWindow(5)).bind(seed=2),
        routed(40, False),
    ]
    expected = dense(analysis.attention_graph(stack, 40))
    monkeypatch.setattr(analysis.graphs, "_ENTRIES", 200)
    np.testing.assert_array_equal(
        dense(analysis.attention_graph(stack, 40)), expected
    )


def test_a_large_graph_has_no_dense_array():
    """An `[n, n]` array of bool would take 22 GB."""
    graph = analysis.attention_graph(
        (patterns.Stochastic(8) | patterns.SlidingWindow(8)).bind(seed=0),
        150_000,
    )
    assert graph.shape == (150_000, 150_000)
    assert 14 * 150_000 < graph.nnz < 15 * 150_000


def test_sources():
    first = keras_sa.SlidingWindowAttention(2, 8, 4)
    second = keras_sa.StochasticAttention(2, 8, 6, seed=5)
    window = patterns.SlidingWindow(4).bind(is_causal=True)
    stochastic = patterns.Stochastic(6).bind(seed=5, is_causal=True)
    assert analysis.as_patterns(first, is_causal=True) == [window]
    assert analysis.as_patterns([first, second], is_causal=True) == [
        window,
        stochastic,
    ]
    # Patterns say it themselves.
    assert analysis.as_patterns([window, second]) == [
        window,
        patterns.Stochastic(6).bind(seed=5),
    ]


def test_plain_patterns_are_bidirectional_and_each_has_a_seed_of_its_place():
    stochastic, window = patterns.Stochastic(4), patterns.SlidingWindow(3)
    assert analysis.as_patterns(stochastic) == [stochastic.bind()]
    assert analysis.as_patterns(stochastic, True, seed=5) == [
        stochastic.bind(is_causal=True, seed=5)
    ]
    bound = stochastic.bind(seed=9, is_causal=True)
    found = analysis.as_patterns([stochastic, window, bound, stochastic])
    words = ops.convert_to_numpy(permutation.split_seed(0, 4))
    words = [int(x) % 2**32 for x in words]
    assert found == [
        stochastic.bind(seed=words[0]),
        window.bind(seed=words[1]),
        bound,
        stochastic.bind(seed=words[3]),
    ]
    assert analysis.as_patterns([stochastic] * 2, seed=1) != (
        analysis.as_patterns([stochastic] * 2, seed=2)
    )


class Asked:
    """A layer that was called with a causal mask, and what it was asked."""

    def attention_pattern(self, is_causal=True, inputs=None):
        self.inputs = inputs
        return patterns.SlidingWindow(4).bind(is_causal=is_causal)


def test_layers_say_what_they_were_called_with():
    layer = Asked()
    (found,) = analysis.as_patterns(layer)
    assert found.is_causal and layer.inputs is None
    (found,) = analysis.as_patterns([layer], is_causal=False, inputs="text")
    assert not found.is_causal and layer.inputs == "text"


def test_swaps_are_asked_for_all_layers():
    class Swap:
        def attention_patterns(self, inputs=None):
            return [patterns.Stochastic(4).bind(is_causal=True, seed=inputs)]

    class Task:
        backbone = Swap()

    (found,) = analysis.as_patterns(Task(), inputs=3)
    assert found.is_causal and found.seed == 3
    (found,) = analysis.as_patterns(Task(), is_causal=False, inputs=3)
    assert not found.is_causal


@parametrize_causal
def test_source_may_be_a_model_of_layers(is_causal):
    import keras

    causal = {"use_causal_mask": True} if is_causal else {}
    inputs = keras.Input((20, 16))
    x = keras_sa.SlidingWindowAttention(2, 8, 4)(inputs, inputs, **causal)
    x = keras_sa.StochasticAttention(2, 8, 6, seed=5)(x, x, **causal)
    model = keras.Model(inputs, x)
    assert analysis.as_patterns(model) == [
        patterns.SlidingWindow(4).bind(is_causal=is_causal),
        patterns.Stochastic(6).bind(is_causal=is_causal, seed=5),
    ]


@pytest.mark.parametrize("source", [[], "stochastic", None, [3]])
def test_no_source(source):
    with pytest.raises(ValueError, match="`source` is expected.*Received"):
        analysis.as_patterns(source)


def test_routed_layers_need_their_inputs():
    layer = keras_sa.MixtureOfBlockAttention(2, 8, 4, 2)
    with pytest.raises(ValueError, match="`inputs` is expected.*None"):
        analysis.attention_graph(layer, 20)
    plain = patterns.BlockRouted(4, 2)
    with pytest.raises(ValueError, match="`routes` is expected.*routes=None"):
        analysis.attention_graph(plain, 20)


def test_patterns_are_equal_if_all_of_them_is():
    stochastic = patterns.Stochastic(4)
    assert stochastic.bind(seed=1) == stochastic.bind(seed=1)
    assert stochastic.bind(seed=1) != stochastic.bind(seed=2)
    assert len({stochastic.bind(seed=1), stochastic.bind(seed=1)}) == 1
    # What was chosen is an array: no other object is the same.
    assert routed(40, True) != routed(40, True)


def test_length_of_routed_blocks():
    with pytest.raises(ValueError, match="40. Received: length=39"):
        analysis.attention_graph(routed(40, True), 39)


@pytest.mark.parametrize("length", [0, -1, 2.0, None])
def test_bad_length(length):
    with pytest.raises(ValueError, match="`length` is expected"):
        analysis.attention_graph(patterns.SlidingWindow(3), length)


def test_too_many_edges():
    with pytest.raises(ValueError, match="2\\*\\*30.*Received: length=150000"):
        analysis.attention_graph(patterns.Full().bind(is_causal=True), 150_000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: patterns.SlidingWindow(0),
        lambda: patterns.Stochastic(4).bind(seed=2**32),
        lambda: patterns.Stochastic(4, neighborhood="ring"),
        lambda: patterns.Stochastic(4, permutation_per="head").bind(
            num_key_value_heads=0
        ),
        lambda: patterns.Stochastic(4) | patterns.SlidingWindow(-1),
        lambda: patterns.BlockRouted(4, 2).bind(routes=[[0, 1]]),
        lambda: patterns.Stochastic(4, permutation_per="query"),
    ],
)
def test_bad_patterns(make):
    with pytest.raises(ValueError, match="is expected.*Received"):
        make()
