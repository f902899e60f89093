"""Mistral and Mixtral: their own window is in the decoder layer's mask."""

import dataclasses

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class MixtralFamily(Family):
    def native_window(self, decoder, attention):
        return decoder.sliding_window


@dataclasses.dataclass(frozen=True)
class MistralFamily(MixtralFamily):
    key_value_groups: str | None = "_num_key_value_groups"

    def num_query_heads(self, attention):
        return attention._num_query_heads

    def num_key_value_heads(self, attention):
        return attention._num_key_value_heads


MISTRAL = MistralFamily("MistralTransformerDecoder")
MIXTRAL = MixtralFamily("MixtralTransformerDecoder")
