"""Bloom."""

import dataclasses

from keras_sa.hub.families.alibi import AlibiFamily


@dataclasses.dataclass(frozen=True)
class BloomFamily(AlibiFamily):
    def alibi_slopes(self, decoder, attention):
        return attention._alibi_layer._get_slopes(attention.num_heads)


BLOOM = BloomFamily(
    "BloomDecoder",
    projections=("_query_dense", "_key_dense", "_value_dense", "_output_dense"),
    dropout_layer="_dropout_layer",
    drops_output=True,
)
