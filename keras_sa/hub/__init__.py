"""Sparse attention for the decoders of KerasHub."""

from keras_sa.hub.attention_patterns import attention_patterns
from keras_sa.hub.attention_weights import layers_with_attention
from keras_sa.hub.attention_weights import measure_attention
from keras_sa.hub.backbones import current_swap
from keras_sa.hub.distribution import add_gate_layouts
from keras_sa.hub.families.family import Family
from keras_sa.hub.gate_values import GateMeter
from keras_sa.hub.gate_values import gate_values
from keras_sa.hub.gates import train_only_gates
from keras_sa.hub.preset import from_preset
from keras_sa.hub.preset import load_gates
from keras_sa.hub.preset import save_gates
from keras_sa.hub.preset import save_to_preset
from keras_sa.hub.registry import register_family
from keras_sa.hub.registry import registered_decoders
from keras_sa.hub.swap import AttentionSwap
from keras_sa.hub.swap import swap_attention
