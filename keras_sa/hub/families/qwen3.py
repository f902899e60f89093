"""Qwen3, dense and with mixture of experts, and Qwen3.5.

In Qwen3.5 most layers are linear attention: they have no
`_self_attention_layer` and stay as they are.

The `sliding_window_size` that these backbones take is no window of their own
here: no Qwen3 uses one, and where KerasHub 0.32 runs a fused attention it
ignores it.
"""

from keras_sa.hub.families.family import Family

QWEN3 = Family("Qwen3TransformerDecoder")
QWEN3_MOE = Family("Qwen3MoeTransformerDecoder")
QWEN3_5 = Family("Qwen3_5TransformerDecoder")
QWEN3_5_MOE = Family("Qwen3_5MoeTransformerDecoder")
