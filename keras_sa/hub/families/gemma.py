"""Gemma and Gemma 2: soft cap, dropout on the attention weights, and a window
of its own in every other layer of Gemma 2."""

import dataclasses

from keras_sa.hub import _patching
from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class GemmaFamily(Family):
    attention: str = "attention"
    mask_method: str = _patching.ATTENTION_MASK
    key_value_groups: str | None = None  # not repeated

    def scale(self, attention):
        if attention.query_head_dim_normalize:
            return attention.head_dim**-0.5
        return (attention.hidden_dim // attention.num_query_heads) ** -0.5

    def logit_soft_cap(self, attention):
        return attention.logit_soft_cap

    def dropout(self, attention):
        if not attention.dropout:
            return 0.0, None
        return attention.dropout, attention.dropout_layer.seed_generator

    def native_window(self, decoder, attention):
        if not attention.use_sliding_window_attention:
            return None
        return attention.sliding_window_size


GEMMA = GemmaFamily("GemmaDecoderBlock")
