"""GPT-NeoX: rotates after the cache, and dropout on the attention weights."""

import dataclasses

from keras import ops

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class GPTNeoXFamily(Family):
    key_value_groups: str | None = None

    def num_query_heads(self, attention):
        return attention.num_heads

    def num_key_value_heads(self, attention):
        return attention.num_heads

    def dropout(self, attention):
        if not attention.dropout:
            return 0.0, None
        return attention.dropout, attention._attn_dropout_layer.seed_generator

    def query_at(self, attention, query, index):
        # KerasHub 0.32 rotates the queries of a step as if it began at
        # position 0: what is missing is `index` for each of them.
        rotary_dim = attention.rotary_dim
        batch_size, length, num_heads, _ = ops.shape(query)
        rotated = ops.reshape(
            query[..., :rotary_dim],
            (batch_size * length, 1, num_heads, rotary_dim),
        )
        rotated = attention.rotary_embedding_layer(rotated, start_index=index)
        rotated = ops.reshape(
            rotated, (batch_size, length, num_heads, rotary_dim)
        )
        return ops.concatenate([rotated, query[..., rotary_dim:]], axis=-1)


GPT_NEO_X = GPTNeoXFamily("GPTNeoXDecoder")
