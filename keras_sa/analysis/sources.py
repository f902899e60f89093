"""What may be analysed: patterns, layers, models, and what they come to."""

import dataclasses

import keras

from keras_sa.ops import patterns as _patterns


def as_patterns(source, causal=None):
    """The patterns of a stack of layers, from the first to the last.

    Args:
        source: a pattern of `keras_sa.ops.patterns` or a list of them, one a
            layer; an attention layer of `keras_sa`, or a list of them; a
            Keras model with such layers; or a KerasHub model under
            `keras_sa.hub.swap_attention`, or its swap. What depends on the
            tokens, as block-routed attention does, has to come as a pattern:
            `keras_sa.hub.attention_patterns(model, inputs)` has those of any
            model of KerasHub, and `layer.attention_pattern(causal, inputs)`
            that of a layer.
        causal: whether tokens look back only. Default: as the patterns and
            models say; False for layers, as in their call.

    Returns:
        A list of patterns.

    Raises:
        ValueError: if there is none to be found.

    Example:

    >>> from keras_sa import analysis
    >>> layer = keras_sa.SlidingWindowAttention(2, 8, window_size=16)
    >>> analysis.as_patterns(layer, causal=True)
    [SlidingWindow(causal=True, window_size=16)]
    """
    found = _found_in(source)
    if not found:
        raise ValueError(
            "`source` is expected to be a pattern of `keras_sa.ops.patterns`, "
            "an attention layer of `keras_sa`, a list of these, a Keras model "
            "with such layers, a KerasHub model under "
            "`keras_sa.hub.swap_attention`, or what "
            "`keras_sa.hub.attention_patterns` returns of one that is not. "
            f"Received: source={source!r}"
        )
    if causal is None:
        return found
    return [dataclasses.replace(x, causal=bool(causal)) for x in found]


def _found_in(source):
    if isinstance(source, _patterns.Pattern):
        return [source]
    if isinstance(source, (list, tuple)):
        return [pattern for part in source for pattern in _found_in(part)]
    if hasattr(source, "attention_pattern"):  # a layer
        return [source.attention_pattern()]
    if hasattr(source, "attention_patterns"):  # a swap, or what is under it
        return list(source.attention_patterns())
    if hasattr(source, "backbone"):  # a task whose backbone was swapped
        return _found_in(source.backbone)
    if isinstance(source, keras.Model):
        return [
            layer.attention_pattern()
            for layer in source._flatten_layers(include_self=False)
            if hasattr(layer, "attention_pattern")
        ]
    return []
