"""Gemma 4: no scale, and layers that use the keys and values of others."""

import dataclasses

from keras_sa import patterns
from keras_sa.hub.families.gemma import GemmaFamily


@dataclasses.dataclass(frozen=True)
class Gemma4Family(GemmaFamily):
    def num_key_value_heads(self, attention):
        return attention.effective_num_kv_heads

    def scale(self, attention):
        return 1.0  # the norms of queries and keys stand for it

    def is_bidirectional(self, decoder):
        return decoder.use_bidirectional_attention

    def native_window(self, decoder, attention):
        if decoder.is_global_attention:
            return None
        return super().native_window(decoder, attention)

    def native_pattern(self, decoder, attention):
        if self.is_bidirectional(decoder):
            return patterns.Full()  # KerasHub 0.32 leaves its window out
        return super().native_pattern(decoder, attention)


GEMMA4 = Gemma4Family("Gemma4TextDecoderBlock")
