"""Under `keras.RematScope`, a call is computed again for its gradients.

It has to see the permutations of the first time: whatever is rematerialised,
the task, the backbone, a decoder layer or an attention, draws them first and
computes after.
"""

import contextlib
import dataclasses
from typing import Any


@dataclasses.dataclass
class Replay:
    """What a call does again when it is computed again.

    Attributes:
        seed: int32 scalar tensor: of its permutation.
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


def draw_first(layer, swapped_attentions):
    """The layer's `rematerialized_call`, drawing once.

    Args:
        layer: a layer or a model.
        swapped_attentions: the `SwappedAttention`s in it.
    """
    original = layer.rematerialized_call

    def rematerialized_call(layer_call, *args, **kwargs):
        replays = [swapped.make_replay() for swapped in swapped_attentions]

        def call(*args, **kwargs):
            with contextlib.ExitStack() as stack:
                for swapped, replay in zip(swapped_attentions, replays):
                    stack.enter_context(swapped.replaying(replay))
                return layer_call(*args, **kwargs)

        return original(call, *args, **kwargs)

    return rematerialized_call
