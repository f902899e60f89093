"""Attention under any pattern as a layer."""

import dataclasses

import keras
from keras import ops

from keras_sa import _validation
from keras_sa import patterns
from keras_sa.layers import drawing
from keras_sa.layers.projected_attention import ProjectedAttention
from keras_sa.ops.attention import attention
from keras_sa.ops.attention import attention_weights
from keras_sa.ops.attention import check_implementation
from keras_sa.ops.routed.api import route_to_blocks

RESAMPLE = ("training", "always", "never")
GATE_PER = ("head", "channel")


@keras.saving.register_keras_serializable("keras_sa")
class SparseAttention(ProjectedAttention):
    """Multi-head self-attention to the keys that a pattern says.

    A drop-in for self-attention with `keras.layers.MultiHeadAttention` or
    `keras.layers.GroupQueryAttention`: same call, same weights. Only a gated
    sum of patterns adds parameters, its gates. Time and memory are those of
    the pattern: O(n w) for windows of w. Position encodings go into the
    inputs and are not moved.

    Give every layer of a random pattern its own seed, or leave `seed=None`:
    layers with the same permutation do not reach further together than one.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        pattern: a `keras_sa.patterns.Pattern`, such as
            `SlidingWindow(64) | Stochastic(64) | GlobalKeys(first=4)` (one
            softmax) or `Stochastic(64) + SlidingWindow(64)` (gated sum).
        gate_per: of a gated sum: `"head"` (default): a sigmoid gate of the
            query's features for each term and head; `"channel"`: for each
            channel of the values, too. Kernels and biases start at 0: an
            untrained layer is the mean of two terms.
        resample: of a random pattern: `"training"`: new permutations at every
            training call, fixed ones from the seed otherwise; `"always"`: new
            ones at every call; `"never"`: the fixed ones.
        implementation: `None` for the best one, or a name as in
            `keras_sa.ops.attention`, which never falls back.
        num_key_value_heads: number of key and value heads; divides
            `num_heads`. Default: `num_heads`.
        value_dim: size of each value head. Default: `key_dim`.
        dropout: rate of dropout on the attention weights in training.
        use_bias: whether the projections have biases.
        output_shape: int or tuple: the features of the output. Default: those
            of the query.
        use_gate: whether a sigmoid gate of the query's features multiplies
            the attention's output, as in `keras.layers.MultiHeadAttention`.
        kernel_initializer: initializer of the projections' kernels.
        bias_initializer: initializer of the projections' biases.
        kernel_regularizer: regularizer of the projections' kernels.
        bias_regularizer: regularizer of the projections' biases.
        activity_regularizer: regularizer of the projections' outputs.
        kernel_constraint: constraint on the projections' kernels.
        bias_constraint: constraint on the projections' biases.
        seed: int of at most 32 bits, for permutations and dropout. Default:
            drawn at construction, governed by `keras.utils.set_random_seed`.
            It is part of the configuration: a saved model keeps its
            permutations.
        **kwargs: `name`, `dtype`, `trainable`, as in every Keras layer.

    Call arguments:
        query: `[B, n, F]`.
        value: `[B, n, Fv]`. Default: `query`.
        key: `[B, n, Fk]`. Default: `value`.
        query_mask, value_mask, key_mask: `[B, n]`, true or 1 for real tokens;
            by default the Keras masks of the inputs. A token is real if all
            of them say so. Others take no place among real tokens, nobody
            attends to them, and their attention output is 0 before the output
            projection.
        attention_mask: `[n, n]`, `[B or 1, n, n]`, `[B, 1, n]` or
            `[B, 1, n, n]`, boolean or integer, in addition. It does not
            change which blocks a query chooses.
        return_attention_scores: whether to return the scores `[B, H, n, n]`
            as well. This takes O(n^2) time and memory. Of a gated sum, the
            gated sum of its terms' scores, which does not sum to 1.
        training: whether to apply dropout and to resample.
        use_causal_mask: whether a token attends to no later token.

    Returns:
        `[B, n, *output_shape]`, and with `return_attention_scores` the scores
        before dropout.

    Raises:
        ValueError: for inputs that are not self-attention of rank 3, or
            arguments that are not as above.

    Example:

    >>> from keras_sa.patterns import GlobalKeys, SlidingWindow, Stochastic
    >>> x = keras.random.normal((2, 100, 32), seed=0)
    >>> layer = keras_sa.SparseAttention(
    ...     4, 8, SlidingWindow(8) | Stochastic(16) | GlobalKeys(first=2)
    ... )
    >>> layer(x, x, use_causal_mask=True).shape
    (2, 100, 32)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        pattern,
        gate_per=None,
        resample="training",
        implementation=None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        self.pattern = patterns.check_pattern(pattern)
        self.gate_per = self._check_gate_per(gate_per)
        self.resample = _validation.check_one_of("resample", resample, RESAMPLE)
        self.implementation = check_implementation(implementation)
        self._term_gate_dense = None
        draws = self.pattern.is_random and resample != "never"
        self._permutation_seed_generator = (
            keras.random.SeedGenerator(self.seed % 2**31) if draws else None
        )

    def _check_gate_per(self, gate_per):
        if "gates" in self.pattern.needs():
            choices = (None, *GATE_PER)
            return _validation.check_one_of("gate_per", gate_per, choices)
        if gate_per is None:
            return None
        raise ValueError(
            "`gate_per` belongs to a gated sum, as Stochastic(w) + "
            "SlidingWindow(w); one softmax has no gates: leave it out. "
            f"Received: gate_per={gate_per!r} with {self.pattern!r}"
        )

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if "gates" not in self.pattern.needs():
            return
        channels = self.value_dim if self.gate_per == "channel" else 1
        num_terms = len(self.pattern.terms)
        self._term_gate_dense = self._projection(
            "term_gate",
            "bqm,mphc->bqphc",
            (None, num_terms, self.num_heads, channels),
            "phc",
            query_shape,
            activation="sigmoid",
            kernel_initializer="zeros",
            bias_initializer="zeros",
            # In half precision small steps of a gate would be lost.
            dtype="float32",
        )

    @property
    def term_gate_dense(self):
        """The projection of the gates of a gated sum, or `None`."""
        return self._term_gate_dense

    def _projections(self):
        gates = self._term_gate_dense
        gates = () if gates is None else (gates,)
        return (*super()._projections(), *gates)

    def _gates(self, inputs):
        """The gates of the terms `[B, n, H, 1 or E]`, or `None`."""
        if self._term_gate_dense is None:
            return None
        num_terms = len(self.pattern.terms)
        gates = self._term_gate_dense(inputs)
        return ops.unstack(gates, num=num_terms, axis=2)

    def _draw(self, training):
        draw = super()._draw(training)
        if not self.pattern.is_random:
            return draw
        resamples = self.resample == "always" or (
            self.resample == "training" and training
        )
        seed = self.seed
        if resamples:
            seed = drawing.next_permutation_seed(
                self._permutation_seed_generator, self.name
            )
        return dataclasses.replace(draw, permutation_seed=seed)

    def _attend(
        self, inputs, query, key, value, masks, causal, draw, with_scores
    ):
        options = {
            "seed": draw.permutation_seed,
            "is_causal": causal,
            "gates": self._gates(inputs),
            **masks,
            **draw.dropout_keywords(),
        }
        if with_scores:
            return attention_weights(query, key, value, self.pattern, **options)
        output = attention(
            query,
            key,
            value,
            self.pattern,
            implementation=self.implementation,
            **options,
        )
        return output, None

    def attention_pattern(self, is_causal=None, inputs=None):
        """What the layer attends to at inference, for `keras_sa.analysis`.

        Permutations are those of the layer's seed, also if it draws anew at
        every call.

        Args:
            is_causal: whether a token attends to no later token. Default: as
                in the layer's last call.
            inputs: `[1, n, F]`: what the layer is called on. Only a pattern
                that depends on the tokens needs it.

        Returns:
            A `keras_sa.patterns.BoundPattern`.
        """
        if is_causal is None:
            is_causal = getattr(self, "_is_causal", False)
        routes = None
        if "routes" in self.pattern.needs():
            routes = self._routes(is_causal, inputs)
        return self.pattern.bind(
            is_causal=is_causal,
            seed=self.seed,
            num_key_value_heads=self.num_key_value_heads,
            routes=routes,
        )

    def _routes(self, is_causal, inputs):
        if inputs is None or inputs.shape[0] != 1:
            raise ValueError(
                f"Layer {self.name!r} lets its queries choose what they attend "
                "to. `inputs` is expected to be one sequence `[1, n, F]` that "
                "the layer is called on. Received: inputs="
                + ("None" if inputs is None else f"of shape {inputs.shape}")
            )
        routes = route_to_blocks(
            self._query_dense(inputs),
            self._key_dense(inputs),
            block_size=self.pattern.block_size,
            top_k=self.pattern.top_k,
            is_causal=is_causal,
        )
        return routes[0]

    def get_config(self):
        config = {
            "pattern": keras.saving.serialize_keras_object(self.pattern),
            "gate_per": self.gate_per,
            "resample": self.resample,
            "implementation": self.implementation,
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if isinstance(config.get("pattern"), dict):
            pattern = keras.saving.deserialize_keras_object(config["pattern"])
            config["pattern"] = pattern
        return super().from_config(config)
