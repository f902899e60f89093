"""Mistral and Mixtral: their own window is in the decoder layer's mask."""

import dataclasses

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class MistralFamily(Family):
    def native_window(self, decoder, attention):
        return decoder.sliding_window


MISTRAL = MistralFamily(
    "MistralTransformerDecoder", key_value_groups="_num_key_value_groups"
)
MIXTRAL = MistralFamily("MixtralTransformerDecoder")
