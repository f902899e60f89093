"""Gemma 3: as Gemma, with a cache in two parts and, for embeddings, a mode
that looks both ways."""

import dataclasses

from keras import ops

from keras_sa.hub.families.gemma import GemmaFamily
from keras_sa.ops import patterns


@dataclasses.dataclass(frozen=True)
class _WindowAhead(patterns.SlidingWindow):
    """A window whose larger half, if its size is even, is ahead."""

    def mask(self, length):
        mask = super().mask(length)
        return mask if self.causal else ops.transpose(mask)

    def neighbors(self, length, positions=None):
        if self.causal:
            return super().neighbors(length, positions)
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        mirrored = super().neighbors(length, length - 1 - positions)
        return ops.where(mirrored < 0, -1, length - 1 - mirrored)


@dataclasses.dataclass(frozen=True)
class Gemma3Family(GemmaFamily):
    def is_bidirectional(self, decoder):
        return decoder.use_bidirectional_attention

    def native_pattern(self, decoder, attention):
        window = self.native_window(decoder, attention)
        if self.is_bidirectional(decoder) and window is not None:
            return _WindowAhead(window)
        return super().native_pattern(decoder, attention)

    def cache_length(self, cache):
        return cache[0].shape[1]  # keys and values [B, S, K, D]


GEMMA3 = Gemma3Family("Gemma3DecoderBlock")
