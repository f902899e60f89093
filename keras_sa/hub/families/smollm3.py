"""SmolLM3: every fourth layer has no position encoding, which changes nothing
here."""

import dataclasses

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class SmolLM3Family(Family):
    def num_query_heads(self, attention):
        return attention.num_attention_heads


SMOLLM3 = SmolLM3Family("SmolLM3DecoderLayer", attention="self_attn")
