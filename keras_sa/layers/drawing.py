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

# Far above the number of calls of a layer in training.
_CALLS = 2**24


@dataclasses.dataclass(frozen=True)
class Draw:
    """Everything random in one call of a layer.

    Attributes:
        dropout: rate of dropout in this call; 0 outside training.
        dropout_state: seed tensor `[2]` of the call's dropout, or `None`.
        permutation_seed: int or int32 scalar tensor; `None` where a layer has
            no permutation.
    """

    dropout: float
    dropout_state: Any = None
    permutation_seed: Any = None

    def dropout_keywords(self):
        """`dropout` and `dropout_seed` of the call's attention."""
        if not self.dropout:
            return {}
        seed = DrawnSeed(self.dropout_state)
        return {"dropout": self.dropout, "dropout_seed": seed}


class DrawnSeed(keras.random.SeedGenerator):
    """A seed generator that goes on from a state drawn before."""

    def __init__(self, state):
        # No `super().__init__()`: there is no variable to keep.
        self._state, self._count = state, 0
        # `keras.random.dropout` on torch ignores a generator without one.
        self._initial_seed = 0

    def next(self, ordered=True):
        high, low = ops.unstack(self._state)
        low = low + ops.cast(self._count, low.dtype)
        # Each call of a layer draws a `low` of its own, one after the other.
        self._count += _CALLS
        return ops.stack([high, low])


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
