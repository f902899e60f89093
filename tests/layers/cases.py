"""The layers under test, and how to run them."""

import keras
import numpy as np
from keras import ops

import keras_sa
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing

COMMON = {"num_heads": 4, "key_dim": 6}
ALL_LAYERS = {
    "sliding_window": (keras_sa.SlidingWindowAttention, {"window_size": 5}),
    "stochastic_window": (keras_sa.StochasticAttention, {"window_size": 5}),
    "stochastic_block_per_head": (
        keras_sa.StochasticAttention,
        {
            "window_size": 5,
            "neighborhood": "block",
            "permutation_per": "head",
            "num_key_value_heads": 2,
        },
    ),
    "stochastic_never": (
        keras_sa.StochasticAttention,
        {"window_size": 5, "resample": "never", "use_bias": False},
    ),
    "stochastic_always_dropout": (
        keras_sa.StochasticAttention,
        {"window_size": 5, "resample": "always", "dropout": 0.2},
    ),
    "small_world_gate": (
        keras_sa.SmallWorldAttention,
        {"window_size": 5, "local_window_size": 3},
    ),
    "small_world_channel": (
        keras_sa.SmallWorldAttention,
        {"window_size": 5, "gate_per": "channel", "value_dim": 3},
    ),
    "small_world_softmax": (
        keras_sa.SmallWorldAttention,
        {"window_size": 5, "merge": "softmax", "dropout": 0.1},
    ),
    "union": (
        keras_sa.SparseAttention,
        {
            "pattern": SlidingWindow(3, dilation=2)
            | Stochastic(4, permutation_per="head")
            | GlobalKeys(first=2)
            | GlobalQueries(last=3),
            "num_key_value_heads": 2,
            "use_gate": True,
        },
    ),
    "gated_unions": (
        keras_sa.SparseAttention,
        {
            "pattern": (Stochastic(4) | GlobalKeys(first=1))
            + (SlidingWindow(3) | GlobalKeys(first=1))
            + SlidingWindow(2, dilation=4),
            "use_gate": True,
        },
    ),
    "mixture_of_block": (
        keras_sa.MixtureOfBlockAttention,
        {"block_size": 4, "top_k": 2, "num_key_value_heads": 1},
    ),
}
# One of each kind, for what takes long.
REPRESENTATIVE = (
    "sliding_window",
    "stochastic_block_per_head",
    "small_world_gate",
    "small_world_softmax",
    "union",
    "mixture_of_block",
)


LAYERS = ALL_LAYERS
if testing.IS_COMPILED:  # all are one layer
    REPRESENTATIVE = ("small_world_gate", "union", "mixture_of_block")
    names = (*REPRESENTATIVE, "stochastic_always_dropout")
    LAYERS = {name: ALL_LAYERS[name] for name in names}


def make(name, **changes):
    layer_class, arguments = ALL_LAYERS[name]
    return layer_class(**{**COMMON, "seed": 3, **arguments, **changes})


def tokens(batch_size=2, length=13, features=10, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(batch_size, length, features)).astype("float32")


def to_numpy(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def run(layer, x, **call):
    """`layer(x, **call)`, compiled on JAX. What a call does to seed generators,
    it does."""
    x = ops.convert_to_tensor(x)
    if not layer.built:
        layer.build(x.shape)
    if keras.config.backend() != "jax":
        return layer(x, **call)

    def compute(x):
        return stateless(layer, x, **call)

    outputs, states = testing.compiled_on_jax(compute)(x)
    for variable, state in zip(layer.non_trainable_variables, states):
        variable.assign(state)
    return outputs


def stateless(layer, x, **call):
    """What the layer returns, and its states after the call."""
    return layer.stateless_call(
        [v.value for v in layer.trainable_variables],
        [v.value for v in layer.non_trainable_variables],
        x,
        **call,
    )
