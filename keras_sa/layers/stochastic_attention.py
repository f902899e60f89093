"""Stochastic attention as a layer."""

import keras

from keras_sa.layers.sparse_attention import SparseAttention
from keras_sa.patterns import Stochastic


@keras.saving.register_keras_serializable("keras_sa")
class StochasticAttention(SparseAttention):
    """Multi-head self-attention to a random sample of the sequence, in O(n w).

    `SparseAttention` with the pattern `Stochastic(window_size, ...)`: the layer
    permutes the tokens at random, attends in a window over that permutation,
    and restores the order. No parameters are added. Layers with independent
    permutations reach the whole sequence in O(log_w n) layers.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        window_size: slots in the window, the token's own included. Under a
            causal mask a token attends to `(window_size + 1) / 2` keys in the
            mean.
        neighborhood: `"window"`: the slots around the token's; `"block"`:
            slots are cut in disjoint blocks of `window_size`, which run in
            the backend's own attention kernel.
        permutation_per: `"layer"`: one permutation for all heads; `"head"`: an
            independent one for each key/value head, so that the layer reaches
            more tokens at the same cost.
        **kwargs: as in `SparseAttention`: `resample`, `implementation`,
            `num_key_value_heads`, `value_dim`, `dropout`, `use_bias`,
            `output_shape`, `use_gate`, initializers, regularizers,
            constraints, `seed`, `name`, `dtype`, `trainable`.

    Call arguments, returns, raises:
        As in `SparseAttention`.

    Example:

    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.StochasticAttention(4, 8, window_size=16)
    >>> layer(x, x, use_causal_mask=True).shape
    (2, 100, 32)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        window_size,
        neighborhood="window",
        permutation_per="layer",
        **kwargs,
    ):
        pattern = Stochastic(window_size, neighborhood, permutation_per)
        super().__init__(num_heads, key_dim, pattern, **kwargs)

    def get_config(self):
        config = super().get_config()
        for name in ("pattern", "gate_per"):
            del config[name]
        return {**config, **self.pattern.get_config()}
