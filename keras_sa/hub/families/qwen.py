"""Qwen 1 and 2, dense and with mixture of experts."""

import dataclasses

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class QwenFamily(Family):
    def native_window(self, decoder, attention):
        if not attention.use_sliding_window_attention:
            return None
        return attention.sliding_window_size


QWEN = QwenFamily("QwenTransformerDecoder")
QWEN_MOE = QwenFamily("QwenMoeTransformerDecoder")
