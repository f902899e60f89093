"""Gemma 3: as Gemma, with a cache in two parts and, for embeddings,
bidirectional attention."""

import dataclasses

from keras import ops

from keras_sa.hub.families.gemma import GemmaFamily
from keras_sa.patterns import Pattern
from keras_sa.patterns import window_reach


@dataclasses.dataclass(frozen=True, repr=False)
class WindowAhead(Pattern):
    """A window whose larger half, if its size is even, is ahead."""

    window_size: int

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        left, right = window_reach(self.window_size, is_causal)
        if not is_causal:
            left, right = right, left
        neighbor = positions[:, None] + ops.arange(
            -left, right + 1, dtype="int32"
        )
        inside = ops.logical_and(neighbor >= 0, neighbor < length)
        return ops.where(inside, neighbor, -1)


@dataclasses.dataclass(frozen=True)
class Gemma3Family(GemmaFamily):
    def is_bidirectional(self, decoder):
        return decoder.use_bidirectional_attention

    def native_pattern(self, decoder, attention):
        window = self.native_window(decoder, attention)
        if self.is_bidirectional(decoder) and window is not None:
            return WindowAhead(window)
        return super().native_pattern(decoder, attention)

    def cache_length(self, cache):
        return cache[0].shape[1]  # keys and values [B, S, K, D]


GEMMA3 = Gemma3Family("Gemma3DecoderBlock")
