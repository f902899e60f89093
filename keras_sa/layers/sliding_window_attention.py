"""Sliding-window attention as a layer."""

import keras

from keras_sa import _validation
from keras_sa import ops as sa_ops
from keras_sa.layers.projected_attention import ProjectedAttention
from keras_sa.ops import patterns


@keras.saving.register_keras_serializable("keras_sa")
class SlidingWindowAttention(ProjectedAttention):
    """Multi-head self-attention to a window of neighbours, in O(n w).

    A drop-in for self-attention with `keras.layers.MultiHeadAttention` or
    `keras.layers.GroupQueryAttention`: same call, same weights. Where Keras
    takes `sliding_window=w`, `window_size=w` is the same under a causal mask;
    without one, Keras' symmetric `sliding_window=s` is `window_size=2 * s - 1`.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        window_size: tokens in the window, the token itself included. With
            `use_causal_mask=True`: itself and the `window_size - 1` before.
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
            by default the Keras masks of the inputs. A token is real if all
            of them say so; others are seen by nobody, and their attention
            output is 0 before the output projection.
        attention_mask: `[B, n]` (padding), `[B or 1, n, n]` or
            `[B, 1, n, n]`, boolean or integer, in addition.
        return_attention_scores: whether to return the scores `[B, H, n, n]`
            as well. This takes O(n^2) time and memory.
        training: whether to apply dropout.
        use_causal_mask: whether a token sees no later token.

    Returns:
        `[B, n, *output_shape]`, and with `return_attention_scores` the scores
        before dropout.

    Raises:
        ValueError: for inputs that are not self-attention of rank 3, or
            arguments that are not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.SlidingWindowAttention(4, 8, window_size=16)
    >>> layer(x, x, use_causal_mask=True).shape
    (2, 100, 32)

    Reference:
        Longformer, https://arxiv.org/abs/2004.05150;
        Mistral 7B, https://arxiv.org/abs/2310.06825
    """

    def __init__(self, num_heads, key_dim, window_size, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        self.window_size = _validation.check_positive_int(
            "window_size", window_size
        )

    def _attend(self, query, key, value, masks, causal, draw):
        return sa_ops.sliding_window_attention(
            query,
            key,
            value,
            window_size=self.window_size,
            is_causal=causal,
            **masks,
            **draw.dropout_keywords(),
        )

    def _pattern(self, query, key, padding_mask, causal, draw):
        length = keras.ops.shape(query)[1]
        return patterns.sliding_window_mask(length, self.window_size, causal)

    def attention_pattern(self, causal=False, inputs=None):
        return patterns.SlidingWindow(self.window_size, causal=causal)

    def visible_keys_per_token(self, length, causal=False):
        """The mean number of keys a token sees in a sequence of `length`."""
        return patterns.visible_keys_per_token(
            length, self.window_size, "sliding_window", causal=causal
        )

    def get_config(self):
        return {**super().get_config(), "window_size": self.window_size}
