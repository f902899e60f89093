"""Mixture of block attention (MoBA) as a layer."""

import keras

from keras_sa import _validation
from keras_sa import ops as sa_ops
from keras_sa.layers.projected_attention import ProjectedAttention
from keras_sa.ops import patterns
from keras_sa.ops.routed.api import route_to_blocks
from keras_sa.ops.routed.api import routed_blocks


@keras.saving.register_keras_serializable("keras_sa")
class MixtureOfBlockAttention(ProjectedAttention):
    """Multi-head self-attention to the blocks that each query chooses.

    A token reads its own block and the best `top_k - 1` others, by the dot
    product of its query with the mean key of the block. No parameters are
    added: the weights are those of `keras.layers.MultiHeadAttention`, or of
    `keras.layers.GroupQueryAttention` with fewer key/value heads.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        block_size: tokens in a block, counted over the real tokens.
        top_k: blocks that a token reads, its own included.
        num_key_value_heads: number of key and value heads; divides
            `num_heads`. Default: `num_heads`.
        value_dim: size of each value head. Default: `key_dim`.
        dropout: rate of dropout on the attention weights in training.
        use_bias: whether the projections have biases.
        output_shape: int or tuple: the features of the output. Default: those
            of the query.
        kernel_initializer: initializer of the projections' kernels.
        bias_initializer: initializer of the projections' biases.
        kernel_regularizer: regularizer of the projections' kernels.
        bias_regularizer: regularizer of the projections' biases.
        activity_regularizer: regularizer of the projections' outputs.
        kernel_constraint: constraint on the projections' kernels.
        bias_constraint: constraint on the projections' biases.
        seed: int, for the dropout. Default: drawn at construction.
        **kwargs: `name`, `dtype`, `trainable`, as in every Keras layer.

    Call arguments:
        query: `[B, n, F]`.
        value: `[B, n, Fv]`. Default: `query`.
        key: `[B, n, Fk]`. Default: `value`.
        query_mask, value_mask, key_mask: `[B, n]`, true or 1 for real tokens;
            by default the Keras masks of the inputs.
        attention_mask: `[B, n]` (padding), `[B or 1, n, n]` or
            `[B, 1, n, n]`, boolean or integer, in addition. It does not
            change the choice of blocks.
        return_attention_scores: whether to return the scores `[B, H, n, n]`
            as well. This takes O(n^2) time and memory.
        training: whether to apply dropout.
        use_causal_mask: whether a token sees no later token; it then chooses
            among past blocks.

    Returns:
        `[B, n, *output_shape]`, and with `return_attention_scores` the scores
        before dropout.

    Raises:
        ValueError: for inputs that are not self-attention of rank 3, or
            arguments that are not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.MixtureOfBlockAttention(4, 8, block_size=16, top_k=3)
    >>> layer(x, x, use_causal_mask=True).shape
    (2, 100, 32)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """

    def __init__(self, num_heads, key_dim, block_size, top_k, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        check = _validation.check_positive_int
        self.block_size = check("block_size", block_size)
        self.top_k = check("top_k", top_k)

    def _attend(self, query, key, value, masks, causal, draw):
        return sa_ops.block_routed_attention(
            query,
            key,
            value,
            block_size=self.block_size,
            top_k=self.top_k,
            is_causal=causal,
            **masks,
            **draw.dropout_keywords(),
        )

    def _pattern(self, query, key, padding_mask, causal, draw):
        routes = routed_blocks(
            query,
            key,
            block_size=self.block_size,
            top_k=self.top_k,
            is_causal=causal,
            padding_mask=padding_mask,
        )
        return patterns.block_routed_mask(
            routes, self.block_size, padding_mask, causal
        )

    def attention_pattern(self, causal=False, inputs=None):
        if inputs is None or inputs.shape[0] != 1:
            raise ValueError(
                f"Layer {self.name!r} lets its queries choose whom they see. "
                "`inputs` is expected to be one sequence `[1, n, F]` that the "
                "layer is called on. Received: inputs="
                + ("None" if inputs is None else f"of shape {inputs.shape}")
            )
        blocks = route_to_blocks(
            self._query_dense(inputs),
            self._key_dense(inputs),
            block_size=self.block_size,
            top_k=self.top_k,
            is_causal=causal,
        )
        return patterns.BlockRouted(self.block_size, blocks[0], causal=causal)

    def visible_keys_per_token(self, length, causal=False):
        """The mean number of keys a token sees in a sequence of `length`."""
        return patterns.visible_keys_per_token(
            length,
            self.block_size,
            "block_routed",
            causal=causal,
            top_k=self.top_k,
        )

    def get_config(self):
        config = {"block_size": self.block_size, "top_k": self.top_k}
        return {**super().get_config(), **config}
