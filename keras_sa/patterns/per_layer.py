"""One pattern for all layers, interleaved ones, or one for each layer."""

import collections.abc
import itertools

import numpy as np

from keras_sa.patterns.full import Full
from keras_sa.patterns.pattern import check_pattern

_FULL = Full()


def patterns_by_layer(pattern, layers):
    """The layers that get another attention, and which.

    Args:
        pattern: a `Pattern` for all layers; a list of them, interleaved; or a
            dict of layer index to pattern. `Full()` leaves a layer as it is.
        layers: indices of the layers there are to choose from.

    Returns:
        dict of layer index to `Pattern`, in the order of the layers.

    Raises:
        ValueError: for what is no pattern, for a list that is longer than the
            layers, or a dict of layers that do not exist.

    Example:

    >>> from keras_sa.patterns import SlidingWindow
    >>> from keras_sa.patterns import Stochastic
    >>> from keras_sa.patterns import patterns_by_layer
    >>> patterns_by_layer([Stochastic(8), SlidingWindow(8)], range(3))
    {0: Stochastic(8), 1: SlidingWindow(8), 2: Stochastic(8)}
    """
    layers = list(layers)
    if isinstance(pattern, collections.abc.Mapping):
        chosen = _by_index(pattern, layers)
    elif isinstance(pattern, (list, tuple)):
        chosen = _interleaved(pattern, layers)
    else:
        chosen = dict.fromkeys(layers, check_pattern(pattern))
    return {layer: x for layer, x in chosen.items() if x != _FULL}


def is_index(x):
    """Whether it is an int, of Python or NumPy; a bool is none."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _by_index(patterns, layers):
    wrong = [x for x in patterns if not is_index(x) or x not in layers]
    if wrong or not patterns:
        raise ValueError(
            "`pattern` is expected to be a dict of indices of layers that "
            f"have attention: {layers}. Received: {wrong or 'an empty dict'}"
        )
    for layer, pattern in patterns.items():
        check_pattern(pattern, f"pattern[{layer}]")
    return {layer: patterns[layer] for layer in layers if layer in patterns}


def _interleaved(patterns, layers):
    for index, pattern in enumerate(patterns):
        check_pattern(pattern, f"pattern[{index}]")
    if not patterns or len(patterns) > len(layers):
        raise ValueError(
            "`pattern` is expected to be a list of at least one and no more "
            f"than the {len(layers)} layers that there are. "
            f"Received: {len(patterns)} patterns"
        )
    return dict(zip(layers, itertools.cycle(patterns)))
