"""How much a model with gates hears of each path.

Letters: `B` batch, `n` tokens, `H` query heads.
"""

import contextlib

import numpy as np
from keras import ops


def mean_gates(model, gates, inputs):
    """The mean gate of the stochastic and of the local path.

    Over layers, heads and tokens. A gate is a function of the token: its bias
    alone would not tell.

    Args:
        model: a `CausalLM` under `swap_attention`.
        gates: of its swap; not empty.
        inputs: of the model, for a few sequences.
    """
    with _recording(gates) as seen:
        model.backbone(inputs, training=False)
    return [
        float(np.mean([ops.convert_to_numpy(gate) for gate in path]))
        for path in zip(*seen)
    ]


@contextlib.contextmanager
def _recording(gates):
    """A list that gets the two gates `[B, n, H, 1]` of every call."""
    seen = []

    def recorded(call):
        def call_and_record(inputs):
            gates = call(inputs)
            seen.append([ops.cast(gate, "float32") for gate in gates])
            return gates

        return call_and_record

    for gate in gates:
        # Not `gate.call =`: Keras tracks what is set on a layer.
        object.__setattr__(gate, "call", recorded(gate.call))
    try:
        yield seen
    finally:
        for gate in gates:
            object.__delattr__(gate, "call")
