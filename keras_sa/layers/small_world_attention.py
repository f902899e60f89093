"""Sliding-window and stochastic attention together, as a layer."""

import keras

from keras_sa import _validation
from keras_sa.layers.sparse_attention import SparseAttention
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

MERGE = ("gate", "softmax")


@keras.saving.register_keras_serializable("keras_sa")
class SmallWorldAttention(SparseAttention):
    """Dense local clusters and random long-range shortcuts, in O(n w).

    `SparseAttention` with the pattern `Stochastic(window_size) +
    SlidingWindow(local_window_size)`, or `|` of both.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        window_size: slots in the stochastic window, the token's own included.
        local_window_size: tokens in the sliding window, the token itself
            included. Default: `window_size`.
        merge: `"gate"`: `g_sa * SA + g_swa * SWA` with two independent sigmoid
            gates of the query's features, to be trained; they start at 1/2.
            `"softmax"`: one softmax over the union of the keys of both; no
            parameters, so that the weights of a Keras layer can be used
            untrained.
        gate_per: `"head"` (default) or `"channel"`, for `merge="gate"`.
        neighborhood: `"window"` or `"block"`, as in `StochasticAttention`.
        permutation_per: `"layer"` or `"head"`, as in `StochasticAttention`.
        **kwargs: as in `SparseAttention`: `resample`, `implementation`,
            `num_key_value_heads`, `value_dim`, `dropout`, `use_bias`,
            `output_shape`, `use_gate`, initializers, regularizers,
            constraints, `seed`, `name`, `dtype`, `trainable`.

    Call arguments, returns, raises:
        As in `SparseAttention`.

    Example:

    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.SmallWorldAttention(4, 8, window_size=16)
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
        local_window_size=None,
        merge="gate",
        gate_per=None,
        neighborhood="window",
        permutation_per="layer",
        **kwargs,
    ):
        self.merge = _validation.check_one_of("merge", merge, MERGE)
        stochastic = Stochastic(window_size, neighborhood, permutation_per)
        if local_window_size is None:
            local_window_size = window_size
        local = SlidingWindow(local_window_size)
        pattern = stochastic + local if merge == "gate" else stochastic | local
        super().__init__(num_heads, key_dim, pattern, gate_per, **kwargs)

    def get_config(self):
        config = super().get_config()
        del config["pattern"]
        stochastic, local = self.pattern.members
        return {
            **config,
            **stochastic.get_config(),
            "local_window_size": local.window_size,
            "merge": self.merge,
        }
