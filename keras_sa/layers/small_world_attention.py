"""Sliding-window and stochastic attention together, as a layer."""

import keras
from keras import ops

from keras_sa import _validation
from keras_sa import ops as sa_ops
from keras_sa.layers.stochastic_attention import StochasticAttention
from keras_sa.ops import patterns

MERGE = ("gate", "softmax")
GATE = ("head", "channel")


@keras.saving.register_keras_serializable("keras_sa")
class SmallWorldAttention(StochasticAttention):
    """Dense local clusters and random long-range shortcuts, in O(n w).

    Two attentions share the projections: a sliding window over the text and
    a window over a random order of the tokens. Their outputs are merged by
    learned gates, or without parameters in one softmax.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        window_size: slots in the stochastic window, the token's own included.
        local_window_size: tokens in the sliding window, the token itself
            included. Default: `window_size`.
        merge: `"gate"`: `g_sa * SA + g_swa * SWA` with two independent
            sigmoid gates of the query's features; kernels and biases of the
            gates start at 0, so an untrained layer is the mean of its paths.
            `"softmax"`: one softmax over the union of the keys of both; no
            parameters, so that the weights of a Keras layer can be used
            untrained.
        gate: `"head"`: a gate per head and path; `"channel"`: per head,
            path and channel of the values.
        neighborhood: `"window"` or `"block"`, as in `StochasticAttention`.
        permute: `"layer"` or `"head"`, as in `StochasticAttention`.
        resample: `"training"`, `"always"` or `"never"`, as in
            `StochasticAttention`.
        **kwargs: as in `StochasticAttention`.

    Call arguments:
        As in `StochasticAttention`. With `merge="gate"`, the scores of
        `return_attention_scores` are the gated sum of both paths' scores and
        do not sum to 1; with `gate="channel"` there are none.

    Returns:
        `[B, n, *output_shape]`, and with `return_attention_scores` the scores
        before dropout.

    Raises:
        ValueError: for inputs that are not self-attention of rank 3, or
            arguments that are not as above.

    Example:

    >>> import keras
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
        gate="head",
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, window_size, **kwargs)
        self.local_window_size = (
            self.window_size
            if local_window_size is None
            else _validation.check_positive_int(
                "local_window_size", local_window_size
            )
        )
        self.merge = _validation.check_one_of("merge", merge, MERGE)
        self.gate = _validation.check_one_of("gate", gate, GATE)
        self._gate_dense = None

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.merge == "gate":
            channels = 1 if self.gate == "head" else self.value_dim
            self._gate_dense = self._projection(
                "gate",
                "bqm,mphc->bqphc",
                (None, 2, self.num_heads, channels),
                "phc",
                query_shape,
                activation="sigmoid",
                kernel_initializer="zeros",
                bias_initializer="zeros",
            )

    @property
    def gate_dense(self):
        """The projection of the gates, or `None` with `merge="softmax"`."""
        return self._gate_dense

    def _projections(self):
        gates = () if self._gate_dense is None else (self._gate_dense,)
        return (*super()._projections(), *gates)

    def _gates(self, inputs):
        """Gates of the stochastic and of the local path `[B, n, H, 1 or E]`."""
        return ops.unstack(self._gate_dense(inputs), num=2, axis=2)

    def _attend_with(self, inputs, query, key, value, masks, causal, draw):
        softmax = self.merge == "softmax"
        stochastic = self._attend(
            query,
            key,
            value,
            masks,
            causal,
            draw,
            exclude_local=self.local_window_size if softmax else None,
            return_lse=softmax,
        )
        local = sa_ops.sliding_window_attention(
            query,
            key,
            value,
            window_size=self.local_window_size,
            is_causal=causal,
            return_lse=softmax,
            **masks,
            **draw.dropout_keywords(1),
        )
        if softmax:
            return sa_ops.merge_attention(*zip(stochastic, local))
        return sa_ops.gated_sum([stochastic, local], self._gates(inputs))

    def _attend_densely(self, inputs, query, key, value, masks, causal, draw):
        if self.merge == "gate" and self.gate == "channel":
            raise ValueError(
                "`return_attention_scores=True` is expected with gate='head' "
                "or merge='softmax': a gate per channel has no scores per "
                f"pair of tokens. Received: gate={self.gate!r}"
            )
        stochastic = self._pattern(
            query, key, masks["padding_mask"], causal, draw
        )
        local = patterns.sliding_window_mask(
            ops.shape(query)[1], self.local_window_size, causal
        )
        arguments = (query, key, value)
        if self.merge == "softmax":
            union = ops.logical_or(stochastic, local)
            return self._dense(
                *arguments, union, masks, draw.dropout_keywords()
            )
        gates = self._gates(inputs)
        outputs, scores = zip(
            *(
                self._dense(
                    *arguments, pattern, masks, draw.dropout_keywords(index)
                )
                for index, pattern in enumerate((stochastic, local))
            )
        )
        # [B, n, H, 1] as [B, H, n, 1]
        score_gates = [ops.transpose(gate, (0, 2, 1, 3)) for gate in gates]
        return (
            sa_ops.gated_sum(outputs, gates),
            sa_ops.gated_sum(scores, score_gates),
        )

    def attention_pattern(self, causal=False, inputs=None):
        return patterns.SmallWorld(
            **self._pattern_options(),
            local_window_size=self.local_window_size,
            causal=causal,
        )

    def visible_keys_per_token(self, length, causal=False):
        """The mean number of keys a token sees in a sequence of `length`.

        With gates the sum over both paths, which a token may see twice; with
        one softmax the size of the union.
        """
        stochastic = super().visible_keys_per_token(length, causal)
        local = patterns.visible_keys_per_token(
            length, self.local_window_size, "sliding_window", causal=causal
        )
        if self.merge == "gate":
            return stochastic + local
        return patterns.union_size(length, stochastic, local, causal)

    def get_config(self):
        config = {
            "local_window_size": self.local_window_size,
            "merge": self.merge,
            "gate": self.gate,
        }
        return {**super().get_config(), **config}
