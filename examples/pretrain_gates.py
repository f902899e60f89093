"""The gates in a row of the log.

Letters: `P` paths of a layer: the stochastic and the local one, or the local
one alone.
"""

import numpy as np

NAMES = ("stochastic_gate", "local_gate")


def mean_by_name(layers):
    """The mean over the layers that have a path, `{name: gate}`.

    Args:
        layers: the mean gates `[P]` of each layer.
    """
    return {
        name: float(np.mean(paths))
        for place, name in ((-2, NAMES[0]), (-1, NAMES[1]))
        if (paths := [layer[place] for layer in layers if len(layer) >= -place])
    }
