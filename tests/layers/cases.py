"""The layers under test, and how to run them."""

import keras
import numpy as np
from keras import ops

import keras_sa
from keras_sa import backend

COMMON = {"num_heads": 4, "key_dim": 6}
LAYERS = {
    "sliding_window": (keras_sa.SlidingWindowAttention, {"window_size": 5}),
    "stochastic_window": (keras_sa.StochasticAttention, {"window_size": 5}),
    "stochastic_block_per_head": (
        keras_sa.StochasticAttention,
        {
            "window_size": 5,
            "neighborhood": "block",
            "permute": "head",
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
        {"window_size": 5, "gate": "channel", "value_dim": 3},
    ),
    "small_world_softmax": (
        keras_sa.SmallWorldAttention,
        {"window_size": 5, "merge": "softmax", "dropout": 0.1},
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
    "mixture_of_block",
)


def make(name, **changes):
    layer_class, arguments = LAYERS[name]
    return layer_class(**{**COMMON, "seed": 3, **arguments, **changes})


def tokens(batch_size=2, length=13, features=10, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(batch_size, length, features)).astype("float32")


def to_numpy(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def run(layer, x, **call):
    """`layer(x, **call)`, compiled on JAX.

    JAX compiles every eager operation by itself, which takes ten times longer
    than to compile the call. A call that moves a seed generator stays eager.
    """
    x = ops.convert_to_tensor(x)
    if not layer.built:
        layer.build(x.shape)
    draws = call.get("training") or getattr(layer, "resample", "") == "always"
    if keras.config.backend() != "jax" or draws:
        return layer(x, **call)
    return backend.compile(lambda x: layer(x, **call))(x)
