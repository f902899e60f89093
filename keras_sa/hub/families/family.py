"""What a replacement must know of a family of decoders.

One `Family` describes one class of decoder layer: where its attention is, how
its scores are computed, and which of its habits a replacement has to honour.

Letters: `B` batch, `T` query tokens, `S` key tokens, `H` query heads, `K`
key/value heads, `D` head dim.
"""

import dataclasses

from keras_sa import patterns
from keras_sa.hub import _patching

_SEQUENCE = ("decoder_sequence", "x")
_PADDING_MASK = ("decoder_padding_mask", "padding_mask")
_CUSTOM_MASKS = ("decoder_attention_mask", "vision_mask")
_CACHE = ("self_attention_cache", "attention_cache", "cache")
_INDEX = ("self_attention_cache_update_index", "cache_update_index")
_INPUTS = ("hidden_states", "x", "query", "inputs")


def first(arguments, *names):
    """The first of these arguments that was given, else `None`."""
    for name in names:
        if arguments.get(name) is not None:
            return arguments[name]
    return None


@dataclasses.dataclass(frozen=True)
class Family:
    """Describes one class of decoder layer to `swap_attention`.

    The defaults fit most KerasHub decoders: an attention layer with
    `_compute_attention(query, key, value, attention_mask, ...)` that gets
    queries and keys with their position encodings, and a method of the decoder
    layer that makes the attention mask. Override the methods for what differs.

    Args:
        decoder: name of the class of decoder layer.
        attention: name of the decoder layer's attribute that holds the
            attention layer.
        mask_method: name of the decoder layer's method that makes the mask.
        key_value_groups: name of the attention's attribute that says how often
            it repeats keys and values to the query heads before
            `_compute_attention`; `None` if it does not.

    Example:

    >>> from keras_sa import hub
    >>> family = hub.Family("MyDecoderLayer", attention="self_attention")
    >>> hub.register_family(family)
    """

    decoder: str
    attention: str = "_self_attention_layer"
    mask_method: str = _patching.SELF_ATTENTION_MASK
    key_value_groups: str | None = "num_key_value_groups"

    def find_attention(self, decoder):
        """The attention layer, or `None` if this decoder layer has none."""
        return getattr(decoder, self.attention, None)

    def why_not(self, decoder):
        """Why this decoder layer can't be swapped, or `None`."""
        return None

    def num_query_heads(self, attention):
        return attention.num_query_heads

    def num_key_value_heads(self, attention):
        return attention.num_key_value_heads

    def scale(self, attention):
        """The factor on the scores."""
        return attention._inv_norm_factor

    def logit_soft_cap(self, attention):
        """`c` of `c * tanh(score / c)`, or `None`."""
        return None

    def sinks(self, attention):
        """`[H]`: extra logits in the denominator, or `None`."""
        return None

    def alibi_slopes(self, decoder, attention):
        """`H` floats: the ALiBi bias per position of the key, or `None`."""
        return None

    def dropout(self, attention):
        """Rate and seed generator of dropout on the attention weights."""
        return 0.0, None

    def native_window(self, decoder, attention):
        """The keys that a token attends to in a layer with a sliding window
        of its own, itself included; `None` in a layer with full attention."""
        return None

    def native_pattern(self, decoder, attention):
        """What the layer's own attention attends to, as a pattern of
        `keras_sa.patterns`."""
        window = self.native_window(decoder, attention)
        if window is None:
            return patterns.Full()
        return patterns.SlidingWindow(window)

    def is_bidirectional(self, decoder):
        """Whether tokens attend to later ones as well."""
        return False

    def cache_length(self, cache):
        """`S` of the cache that a decoder layer gets `[B, 2, S, K, D]`."""
        return cache.shape[2]

    def query_at(self, attention, query, index):
        """The query of a decoding step, at its position."""
        return query

    def output(self, attention_output):
        """What `_compute_attention` returns."""
        return attention_output

    def mask_arguments(self, arguments):
        """The arguments of the mask method by their role."""
        return MaskArguments(
            sequence=first(arguments, *_SEQUENCE),
            padding_mask=first(arguments, *_PADDING_MASK),
            custom_mask=first(arguments, *_CUSTOM_MASKS),
            cache=first(arguments, *_CACHE),
            use_causal_mask=arguments.get("use_causal_mask", True),
        )

    def call_arguments(self, arguments):
        """The arguments of the attention's `call` by their role."""
        # SmolLM3 hands the cache over in **kwargs.
        arguments = {**arguments, **arguments.get("kwargs", {})}
        index = first(arguments, *_INDEX)
        return CallArguments(
            inputs=first(arguments, *_INPUTS),
            cache=first(arguments, *_CACHE),
            index=0 if index is None else index,
            training=bool(arguments.get("training")),
        )


@dataclasses.dataclass(frozen=True)
class MaskArguments:
    """What a decoder layer makes its mask of."""

    sequence: object
    padding_mask: object
    custom_mask: object
    cache: object
    use_causal_mask: bool


@dataclasses.dataclass(frozen=True)
class CallArguments:
    """What an attention layer was called with.

    Attributes:
        inputs: `[B, T, F]`.
        cache: as the family keeps it, or `None`.
        index: position of the first query in the cache.
        training: whether in training.
    """

    inputs: object
    cache: object
    index: object
    training: bool
