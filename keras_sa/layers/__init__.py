"""Attention layers, drop-in for `keras.layers` in self-attention."""

from keras_sa.layers.mixture_of_block_attention import MixtureOfBlockAttention
from keras_sa.layers.sliding_window_attention import SlidingWindowAttention
from keras_sa.layers.small_world_attention import SmallWorldAttention
from keras_sa.layers.sparse_attention import SparseAttention
from keras_sa.layers.stochastic_attention import StochasticAttention
