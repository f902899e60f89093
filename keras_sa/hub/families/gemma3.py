"""Gemma 3: as Gemma, with a cache in two parts and, for embeddings, a mode
that looks both ways."""

import dataclasses

from keras_sa.hub.families.gemma import GemmaFamily


@dataclasses.dataclass(frozen=True)
class Gemma3Family(GemmaFamily):
    def is_bidirectional(self, decoder):
        return decoder.use_bidirectional_attention

    def cache_length(self, cache):
        return cache[0].shape[1]  # keys and values [B, S, K, D]


GEMMA3 = Gemma3Family("Gemma3DecoderBlock")
