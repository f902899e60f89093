"""How much a model with gates hears of each path.

Letters: `B` batch, `n` tokens, `H` query heads, `P` paths of a layer: the
stochastic and the local one, or the local one alone.
"""

import contextlib

import keras
import numpy as np
from keras import ops

NAMES = ("stochastic_gate", "local_gate")


class GateMeter(keras.Model):
    """The mean gate of each path, for each layer with gates: `[B, P]`.

    Over heads and tokens. A gate is a function of the token: its bias alone
    would not tell.

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
        return [_means(paths) for paths in seen]

    def measure(self, inputs):
        """Floats `[P]` for each layer, over a batch."""
        return [
            np.mean(layer, axis=0).tolist()
            for layer in self.predict_on_batch(inputs)
        ]


def mean_by_name(layers):
    """The mean over the layers that have a path, `{name: gate}`.

    Args:
        layers: of `GateMeter.measure`.
    """
    return {
        name: float(np.mean(paths))
        for place, name in ((-2, NAMES[0]), (-1, NAMES[1]))
        if (paths := [layer[place] for layer in layers if len(layer) >= -place])
    }


def _means(paths):
    """`[B, P]` of gates `[B, n, H, 1]`."""
    means = [ops.mean(ops.cast(x, "float32"), axis=(1, 2, 3)) for x in paths]
    return ops.stack(means, axis=-1)


@contextlib.contextmanager
def _recording(gates):
    """A list that gets the gates `[B, n, H, 1]` of every call."""
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
