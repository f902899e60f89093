"""Falcon: its bias is scaled with the scores."""

import dataclasses

from keras_sa.hub.families.alibi import AlibiFamily


@dataclasses.dataclass(frozen=True)
class FalconFamily(AlibiFamily):
    def alibi_slopes(self, decoder, attention):
        scale = self.scale(attention)
        slopes = decoder._get_slopes(attention.num_heads)
        return [slope * scale for slope in slopes]


FALCON = FalconFamily(
    "FalconTransformerDecoder",
    attention="attention_layer",
    projections=("query_dense", "key_dense", "value_dense", "output_dense"),
    dropout_layer="attention_dropout",
)
