"""The seed of a layer's permutation as a variable of the model."""

import keras
from keras import ops

_HALF = 16  # bits; seed dtypes are signed on some backends, not on others


class PermutationSeed(keras.random.SeedGenerator):
    """A seed that compiled functions read at every call.

    An int would be a constant of theirs. It is a `SeedGenerator` because
    Keras tracks its state among a model's variables, and saves it with none
    of the weights.

    Args:
        seed: int of at most 32 bits.
        name: str.
    """

    def __init__(self, seed, name=None):
        super().__init__(0, name=name)
        self.assign(seed)

    def assign(self, seed):
        """Takes another int of at most 32 bits."""
        word = seed % 2**32
        self.state.assign([word >> _HALF, word % 2**_HALF])

    def read(self):
        """The seed's 32 bits as an int32 scalar tensor."""
        halves = ops.cast(self.state.value, "int32")
        return ops.bitwise_or(ops.left_shift(halves[0], _HALF), halves[1])
