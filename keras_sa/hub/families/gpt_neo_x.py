"""GPT-NeoX: rotates after the cache, and dropout on the attention weights."""

import dataclasses

from keras import ops

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class GPTNeoXFamily(Family):
    key_value_groups: str | None = None

    def num_query_heads(self, attention):
        return attention.num_heads

    def dropout(self, attention):
        if not attention.dropout:
            return 0.0, None
        return attention.dropout, attention._attn_dropout_layer.seed_generator

    def query_at(self, attention, query, index):
        # KerasHub 0.32 rotates the query of a decoding step as if it stood at
        # position 0, which is no rotation: this one is missing.
        rotary_dim = attention.rotary_dim
        rotated = attention.rotary_embedding_layer(
            query[..., :rotary_dim], start_index=index
        )
        return ops.concatenate([rotated, query[..., rotary_dim:]], axis=-1)


GPT_NEO_X = GPTNeoXFamily("GPTNeoXDecoder")
