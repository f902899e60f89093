"""Sliding-window attention as a layer."""

import keras

from keras_sa.layers.sparse_attention import SparseAttention
from keras_sa.patterns import SlidingWindow


@keras.saving.register_keras_serializable("keras_sa")
class SlidingWindowAttention(SparseAttention):
    """Multi-head self-attention to a window of neighbors, in O(n w).

    `SparseAttention` with the pattern `SlidingWindow(window_size, dilation)`.
    Where Keras takes `sliding_window=w`, `window_size=w` is the same under a
    causal mask; without one, Keras' symmetric `sliding_window=s` is
    `window_size=2 * s - 1`.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        window_size: tokens in the window, the token itself included. With
            `use_causal_mask=True`: itself and the `window_size - 1` before.
        dilation: the window takes every `dilation`-th token.
        **kwargs: as in `SparseAttention`: `implementation`,
            `num_key_value_heads`, `value_dim`, `dropout`, `use_bias`,
            `output_shape`, `use_gate`, initializers, regularizers,
            constraints, `seed`, `name`, `dtype`, `trainable`.

    Call arguments, returns, raises:
        As in `SparseAttention`.

    Example:

    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.SlidingWindowAttention(4, 8, window_size=16)
    >>> layer(x, x, use_causal_mask=True).shape
    (2, 100, 32)

    Reference:
        Longformer, https://arxiv.org/abs/2004.05150;
        Mistral 7B, https://arxiv.org/abs/2310.06825
    """

    def __init__(self, num_heads, key_dim, window_size, dilation=1, **kwargs):
        pattern = SlidingWindow(window_size, dilation)
        super().__init__(num_heads, key_dim, pattern, **kwargs)

    def get_config(self):
        config = super().get_config()
        for name in ("pattern", "gate_per", "resample"):
            del config[name]
        return {**config, **self.pattern.get_config()}
