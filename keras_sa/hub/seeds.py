"""What is drawn at random in a swapped layer, and how a replay gets the same.

Under `keras.RematScope`, a call is computed again for its gradients. It has to
have the permutations of the first time: whatever is rematerialised, the task,
the backbone, a decoder layer or an attention, draws them first and computes
after.
"""

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_sa.hub import _patching
from keras_sa.layers import drawing
from keras_sa.patterns import permutation as permutations

SEED_GENERATORS = "attention_permutations"
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


def layer_seeds(seed, num_layers):
    """An int seed for each decoder layer, independent of which are swapped."""
    seeds = ops.convert_to_numpy(permutations.split_seed(seed, num_layers))
    return [int(s) for s in np.asarray(seeds, "int64") % 2**32]


@dataclasses.dataclass
class FirstCall:
    """What a call that is computed again has of the first time.

    Attributes:
        seed: int32 scalar tensor: of its permutations.
        training: whether the first time was in training. Keras does not say
            so again: the layers around have returned by then.
    """

    seed: Any
    training: bool | None = None

    def remember(self, training):
        """The flag of the first time."""
        if self.training is None:
            self.training = training
        return self.training


class LayerSeeds:
    """The seeds of one swapped layer.

    Args:
        index: of the layer.
        seed: int of at most 32 bits.
        resamples: whether every training call draws anew.
    """

    def __init__(self, index, seed, resamples):
        self.fixed = PermutationSeed(seed, name=f"permutation_seed_{index}")
        self.generator = None
        if resamples:
            self.generator = keras.random.SeedGenerator(
                seed % 2**31, name=f"attention_permutation_{index}"
            )

    def reseed(self, seed):
        """Draws what another int seed gives, from the start."""
        self.fixed.assign(seed)
        if self.generator is not None:
            self.generator.state.assign([seed % 2**31, 0])

    def as_int(self):
        """The fixed one, an int from 0 to 2**32 - 1."""
        return int(ops.convert_to_numpy(self.fixed.read())) % 2**32

    def draw(self, layer_name):
        """A new seed for one call in training, int32 scalar tensor."""
        return drawing.next_permutation_seed(self.generator, layer_name)

    def variables(self):
        """What Keras has to track."""
        return [self.fixed] + (
            [] if self.generator is None else [self.generator]
        )


def drawing_first(layer, swapped_attentions):
    """`{name: function}`: the layer's `rematerialized_call`, drawing once.

    Args:
        layer: a layer or a model.
        swapped_attentions: the `SwappedAttention`s in it.
    """

    def make_scope():
        first_calls = [
            swapped.make_first_call() for swapped in swapped_attentions
        ]

        @contextlib.contextmanager
        def scope():
            with contextlib.ExitStack() as stack:
                for swapped, first_call in zip(swapped_attentions, first_calls):
                    stack.enter_context(swapped.replaying(first_call))
                yield

        return scope

    return _patching.rematerialized_call_within(layer, make_scope)
