"""What may be analysed: patterns, layers, models, and what they come to."""

import dataclasses

import keras
from keras import ops

from keras_sa.patterns import BoundPattern
from keras_sa.patterns import Pattern
from keras_sa.patterns import permutation as permutations


def as_patterns(source, is_causal=None, *, inputs=None, seed=0):
    """The patterns of a stack of layers, from the first to the last.

    Args:
        source: a pattern of `keras_sa.patterns` or a list of them, one a
            layer, bound (`pattern.bind(is_causal=True, seed=3)`) or not; an
            attention layer of `keras_sa`, or a list of them; a Keras model
            with such layers; or a KerasHub model under
            `keras_sa.hub.swap_attention`, or its swap. The patterns of any
            other model of KerasHub are `keras_sa.hub.attention_patterns`.
        is_causal: whether a token attends to no later token. Default: what
            bound patterns say, and what layers and models were called with;
            a plain pattern is bidirectional.
        inputs: what one layer, or a swapped model, is called on. Only
            patterns that depend on the tokens, as block-routed ones do, need
            it.
        seed: int of at most 32 bits, of plain patterns: one alone has it
            itself, and in a list each has the one of its place, as the layers
            of a swapped model with this seed have.

    Returns:
        A list of `BoundPattern`.

    Raises:
        ValueError: if there is none to be found.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import SlidingWindow
    >>> analysis.as_patterns(SlidingWindow(16), is_causal=True)[0].is_causal
    True
    """
    use = {} if is_causal is None else {"is_causal": bool(is_causal)}
    if isinstance(source, Pattern):
        return [source.bind(seed=seed, **use)]
    call = use if inputs is None else {**use, "inputs": inputs}
    found = _found_in(source, call)
    if not found:
        raise ValueError(
            "`source` is expected to be a pattern of `keras_sa.patterns`, "
            "an attention layer of `keras_sa`, a list of these, a Keras model "
            "with such layers, a KerasHub model under "
            "`keras_sa.hub.swap_attention`, or what "
            "`keras_sa.hub.attention_patterns` returns of one that is not. "
            f"Received: source={source!r}"
        )
    if any(isinstance(x, Pattern) for x in found):
        found = [_bound(*pair) for pair in zip(found, seeds(seed, len(found)))]
    return [dataclasses.replace(x, **use) for x in found]


def seeds(seed, num_layers):
    """A seed for each of the layers, as those of a swapped model.

    Args:
        seed: int of at most 32 bits.
        num_layers: int.

    Returns:
        A list of ints.
    """
    words = ops.convert_to_numpy(permutations.split_seed(seed, num_layers))
    return [int(word) for word in words.astype("int64") % 2**32]


def _bound(pattern, seed):
    return pattern.bind(seed=seed) if isinstance(pattern, Pattern) else pattern


def _found_in(source, call):
    """Patterns, bound or not, of what answers with these keywords."""
    if isinstance(source, (Pattern, BoundPattern)):
        return [source]
    if isinstance(source, (list, tuple)):
        return [pattern for part in source for pattern in _found_in(part, call)]
    if hasattr(source, "attention_pattern"):  # a layer
        return [source.attention_pattern(**call)]
    if hasattr(source, "attention_patterns"):  # a swap, or what is under it
        inputs = {x: call[x] for x in ("inputs",) if x in call}
        return list(source.attention_patterns(**inputs))
    if hasattr(source, "backbone"):  # a task whose backbone was swapped
        return _found_in(source.backbone, call)
    if isinstance(source, keras.Model):
        return [
            layer.attention_pattern(**call)
            for layer in source._flatten_layers(include_self=False)
            if hasattr(layer, "attention_pattern")
        ]
    return []
