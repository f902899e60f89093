"""How much a model with gates hears of each path.

Letters: `B` batch, `n` tokens, `H` query heads.
"""

import contextlib

import keras
from keras import ops


class GateMeter(keras.Model):
    """The mean gate of the stochastic and of the local path, `[B, 2]`.

    Over layers, heads and tokens. A gate is a function of the token: its bias
    alone would not tell.

    Args:
        backbone: under `swap_attention`.
        gates: of its swap; not empty.

    Call arguments:
        inputs: of the backbone.
    """

    def __init__(self, backbone, gates):
        super().__init__()
        self.backbone = backbone
        self.gates = gates

    def call(self, inputs):
        with _recording(self.gates) as seen:
            self.backbone(inputs, training=False)
        return ops.stack([_mean(path) for path in zip(*seen)], axis=-1)


def _mean(gates):
    """`[B]` of some gates `[B, n, H, 1]`."""
    means = [ops.mean(ops.cast(x, "float32"), axis=(1, 2, 3)) for x in gates]
    return ops.mean(ops.stack(means), axis=0)


@contextlib.contextmanager
def _recording(gates):
    """A list that gets the two gates `[B, n, H, 1]` of every call."""
    seen = []

    def recorded(call):
        def call_and_record(inputs):
            seen.append(call(inputs))
            return seen[-1]

        return call_and_record

    for gate in gates:
        # Not `gate.call =`: Keras tracks what is set on a layer.
        object.__setattr__(gate, "call", recorded(gate.call))
    try:
        yield seen
    finally:
        for gate in gates:
            object.__delattr__(gate, "call")
