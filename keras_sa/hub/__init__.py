"""Sparse attention for the decoders of KerasHub."""

from keras_sa.hub._patching import current_swap
from keras_sa.hub.families.family import Family
from keras_sa.hub.families.registry import register_family
from keras_sa.hub.families.registry import registered_decoders
from keras_sa.hub.gates import GateMeter
from keras_sa.hub.gates import add_gate_layouts
from keras_sa.hub.gates import gate_values
from keras_sa.hub.gates import train_only_gates
from keras_sa.hub.inspect import attention_patterns
from keras_sa.hub.inspect import layers_with_attention
from keras_sa.hub.inspect import measure_attention
from keras_sa.hub.preset import from_preset
from keras_sa.hub.preset import load_gates
from keras_sa.hub.preset import save_gates
from keras_sa.hub.preset import save_to_preset
from keras_sa.hub.swap import AttentionSwap
from keras_sa.hub.swap import swap_attention
