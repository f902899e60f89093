"""GPT-2 and OPT: `keras_hub.layers.TransformerDecoder`, whose attention is
`keras.layers.MultiHeadAttention` with a cache."""

import dataclasses

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class TransformerDecoderFamily(Family):
    key_value_groups: str | None = None

    def why_not(self, decoder):
        if decoder._cross_attention_layer is not None:
            return "it has cross-attention, so it belongs to an encoder-decoder"
        return None

    def num_query_heads(self, attention):
        return attention.num_heads

    def num_key_value_heads(self, attention):
        return attention.num_heads

    def scale(self, attention):
        return attention.key_dim**-0.5

    def dropout(self, attention):
        if not attention.dropout:
            return 0.0, None
        return attention.dropout, attention._dropout_layer.seed_generator

    def output(self, attention_output):
        return attention_output, None  # no scores


TRANSFORMER_DECODER = TransformerDecoderFamily("TransformerDecoder")
