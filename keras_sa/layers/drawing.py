"""What a layer draws at random in one call, and how a replay gets the same.

Rematerialisation runs a call a second time for the backward pass. A seed
generator would then give other numbers, and the gradients would belong to
another permutation; so a layer draws first and computes after.
"""

import contextlib
import dataclasses
from typing import Any

import keras
from keras import ops

from keras_sa import backend
from keras_sa.patterns import permutation as permutations


@dataclasses.dataclass(frozen=True)
class Draw:
    """Everything random in one call of a layer.

    Attributes:
        dropout: rate of dropout in this call; 0 outside training.
        dropout_states: seed tensors, one per attention of the call.
        permutation_seed: int or int32 scalar tensor; `None` where a layer has
            no permutation.
    """

    dropout: float
    dropout_states: tuple
    permutation_seed: Any = None

    def dropout_keywords(self, index=0):
        """`dropout` and `dropout_seed` of attention `index` of the call."""
        if not self.dropout:
            return {"dropout": 0.0, "dropout_seed": None}
        seed = DrawnSeed(self.dropout_states[index:])
        return {"dropout": self.dropout, "dropout_seed": seed}


class DrawnSeed(keras.random.SeedGenerator):
    """A seed generator that hands out seeds drawn before."""

    def __init__(self, states):
        # No `super().__init__()`: there is no variable to keep.
        self._states = list(states)
        # `keras.random.dropout` on torch ignores a generator without one.
        self._initial_seed = 0

    def next(self, ordered=True):
        return self._states.pop(0)


class Replay:
    """Holds the draw of a call while the call is replayed."""

    def __init__(self):
        self.draw = None

    @contextlib.contextmanager
    def using(self, draw):
        outer, self.draw = self.draw, draw
        try:
            yield
        finally:
            self.draw = outer


def next_permutation_seed(seed_generator, layer_name):
    """The int32 seed of a new permutation, from a layer's generator."""
    check_not_in_backward(layer_name)
    state = ops.cast(seed_generator.next(), "int32")
    return permutations.hash32(state[0], state[1])


def check_not_in_backward(layer_name):
    """Raises if torch recomputes a forward pass for its backward pass."""
    if backend.is_in_backward():
        raise RuntimeError(
            f"Layer {layer_name!r} would draw new random numbers while the "
            "forward pass is recomputed for gradients. Expected the layer "
            "itself to be rematerialised: build it under `keras.RematScope`, "
            "or set dropout=0 and resample='never'. "
            "Received: a call during the backward pass, as from `keras.remat` "
            "around a function or a block that holds the layer"
        )
