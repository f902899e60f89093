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

_SUFFIXES = {
    "plain": "",
    "first": ", first",
    "last": ", first, last",
    "full": ", first, last, full",
}


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

    A name is a kind and its visible keys; `first`: the first tokens are visible
    to all; `last`: the last tokens attend to everything; `full`: some layers
    are full.
    """
    num_full = round(arguments.full_layers * len(layers))
    places = np.linspace(0, len(layers) - 1, num_full).astype(int)
    full = {layers[place] for place in places}
    patterns = {}
    for budget in arguments.visible_keys:
        for kind in arguments.kinds:
            variants = _variants(arguments, budget, kind, length)
            union = variants.get("last")
            if union is not None:
                variants["full"] = {
                    index: Full() if index in full else union
                    for index in layers
                }
            for variant in arguments.variants:
                if variant in variants:
                    name = f"{kind.replace('-', ' ')} at {budget}"
                    patterns[name + _SUFFIXES[variant]] = variants[variant]
    return patterns


def _variants(arguments, budget, kind, length):
    """`{variant: pattern}` of a kind, but for that with full layers."""
    of_width = _OF_WIDTH[kind]
    plain = closest(budget, length, of_width)
    if isinstance(plain, BlockRouted):  # which is no part of a union
        return {"plain": plain}
    first = GlobalKeys(first=arguments.first)
    union = closest(budget, length, lambda width: of_width(width) | first)
    last = union | GlobalQueries(last=arguments.last)
    return {"plain": plain, "first": union, "last": last}


def _sliding_and_dilated(width):
    return SlidingWindow(width) | SlidingWindow(width, dilation=16)


_OF_WIDTH = {
    "sliding": SlidingWindow,
    "stochastic": Stochastic,
    # Half of a random window is later text and hidden.
    "small-world-1:1": lambda w: SlidingWindow(w) | Stochastic(2 * w),
    "small-world-3:1": lambda w: SlidingWindow(3 * w) | Stochastic(2 * w),
    "sliding-and-dilated": _sliding_and_dilated,
    "block-routed": lambda w: BlockRouted(w, MOBA_TOP_K),
}
