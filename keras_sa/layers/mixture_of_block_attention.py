"""Mixture of block attention (MoBA) as a layer."""

import keras

from keras_sa.layers.sparse_attention import SparseAttention
from keras_sa.patterns import BlockRouted


@keras.saving.register_keras_serializable("keras_sa")
class MixtureOfBlockAttention(SparseAttention):
    """Multi-head self-attention to the blocks that each query chooses.

    `SparseAttention` with the pattern `BlockRouted(block_size, top_k)`: a token
    reads its own block and the best `top_k - 1` others, by the dot product of
    its query with the mean key of the block. No parameters are added.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        block_size: tokens in a block, counted over the real tokens.
        top_k: blocks that a token reads, its own included. Under a causal
            mask it chooses among past blocks.
        **kwargs: as in `SparseAttention`: `num_key_value_heads`, `value_dim`,
            `dropout`, `use_bias`, `output_shape`, `use_gate`, initializers,
            regularizers, constraints, `seed`, `name`, `dtype`, `trainable`.

    Call arguments, returns, raises:
        As in `SparseAttention`. An `attention_mask` does not change the
        choice of blocks.

    Example:

    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.MixtureOfBlockAttention(4, 8, block_size=16, top_k=3)
    >>> layer(x, x, use_causal_mask=True).shape
    (2, 100, 32)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """

    def __init__(self, num_heads, key_dim, block_size, top_k, **kwargs):
        pattern = BlockRouted(block_size, top_k)
        super().__init__(num_heads, key_dim, pattern, **kwargs)

    def get_config(self):
        config = super().get_config()
        for name in ("pattern", "gate_per", "resample"):
            del config[name]
        return {**config, **self.pattern.get_config()}
