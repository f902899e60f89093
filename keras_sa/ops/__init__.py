"""Functional ops: attention in `keras.ops`, with no layer around it."""

from keras_sa.ops.block_routed_attention import block_routed_attention
from keras_sa.ops.block_routed_attention import route_to_blocks
from keras_sa.ops.dense_attention import dense_attention
from keras_sa.ops.merging import gated_sum
from keras_sa.ops.merging import merge_attention
from keras_sa.ops.sliding_window_attention import sliding_window_attention
from keras_sa.ops.stochastic_attention import stochastic_attention
from keras_sa.patterns.permutation import invert_permutation
from keras_sa.patterns.permutation import sample_permutation
