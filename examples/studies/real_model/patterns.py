"""The patterns that are compared, at equal visible keys."""

import numpy as np

from examples.shared.attentions import MOBA_TOP_K
from examples.shared.attentions import closest
from keras_sa import hub
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


def layers_of(arguments, model):
    """Indices of the layers that --layers says."""
    any_pattern = SlidingWindow(1)
    with hub.swap_attention(model, any_pattern, layers=arguments.layers) as x:
        return x.layers


def patterns_at(arguments, layers, length):
    """`{name: pattern}` at equal visible keys, but for layers that are full.

    Args:
        arguments: of the command line.
        layers: indices of those that get a pattern.
        length: int: tokens of a text.

    A name is a kind; `first`: the first tokens are visible to all; `last`: the
    last tokens attend to everything; `full`: some layers are full.
    """
    first = GlobalKeys(first=arguments.first)
    last = GlobalQueries(last=arguments.last)
    num_full = round(arguments.full_layers * len(layers))
    places = np.linspace(0, len(layers) - 1, num_full).astype(int)
    full = {layers[place] for place in places}
    patterns = {}
    for name, of_width in KINDS.items():
        patterns[name] = _at_budget(arguments, length, of_width)
        if name != "block routed":  # which is no part of a union
            union = _at_budget(
                arguments, length, lambda w, f=of_width: f(w) | first
            )
            patterns[f"{name}, first"] = union
            union = union | last
            patterns[f"{name}, first, last"] = union
            patterns[f"{name}, first, last, full"] = {
                index: Full() if index in full else union for index in layers
            }
    return patterns


def _at_budget(arguments, length, of_width):
    return closest(arguments.visible_keys, length, of_width)


def _sliding_and_dilated(width):
    return SlidingWindow(width) | SlidingWindow(width, dilation=16)


KINDS = {
    "sliding": SlidingWindow,
    "stochastic": Stochastic,
    # Half of a random window is later text and hidden.
    "small world 1:1": lambda w: SlidingWindow(w) | Stochastic(2 * w),
    "small world 3:1": lambda w: SlidingWindow(3 * w) | Stochastic(2 * w),
    "sliding and dilated": _sliding_and_dilated,
    "block routed": lambda w: BlockRouted(w, MOBA_TOP_K),
}
