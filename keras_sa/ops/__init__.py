"""Functional ops: attention in `keras.ops`, with no layer around it."""

from keras_sa.ops.attention import attention
from keras_sa.ops.attention import attention_weights
from keras_sa.ops.dense import dense_attention
from keras_sa.ops.merging import gated_sum
from keras_sa.ops.merging import merge_attention
from keras_sa.ops.neighbors.api import neighbor_attention
from keras_sa.ops.routed.api import block_routed_attention
from keras_sa.ops.routed.api import route_to_blocks
from keras_sa.ops.windowed.sliding_window import sliding_window_attention
from keras_sa.ops.windowed.stochastic import stochastic_attention
from keras_sa.patterns.permutation import invert_permutation
from keras_sa.patterns.permutation import sample_permutation
