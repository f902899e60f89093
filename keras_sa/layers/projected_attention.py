"""Self-attention without its attention: projections, masks, configuration.

A subclass computes what is between the projections (`_attend`).

Letters: `B` batch, `n` tokens, `F` features, `H` query heads, `K` key/value
heads, `D` head dim, `E` value head dim.
"""

import inspect
import random

import keras
from keras import ops

from keras_sa import _validation
from keras_sa.layers import drawing


class ProjectedAttention(keras.layers.Layer):
    """Self-attention with the projections of `keras.layers` attention.

    Weights have the names, shapes and order of
    `keras.layers.MultiHeadAttention`, or of
    `keras.layers.GroupQueryAttention` with fewer key/value heads.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        num_key_value_heads=None,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        use_gate=False,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = _validation.check_positive_int("num_heads", num_heads)
        self.key_dim = _validation.check_positive_int("key_dim", key_dim)
        self.num_key_value_heads = self._check_num_key_value_heads(
            num_key_value_heads
        )
        self.value_dim = (
            self.key_dim
            if value_dim is None
            else _validation.check_positive_int("value_dim", value_dim)
        )
        self.dropout = _validation.check_rate("dropout", dropout)
        self.use_bias = use_bias
        self._output_shape = _check_output_shape(output_shape)
        self.use_gate = bool(use_gate)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.projection_activity_regularizer = keras.regularizers.get(
            activity_regularizer
        )
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        if seed is None:  # `keras.utils.set_random_seed` governs the draw
            seed = random.randint(1, 10**9)
        self.seed = _validation.check_seed(seed)
        self._dropout_seed_generator = (
            keras.random.SeedGenerator(self.seed % 2**31) if dropout else None
        )
        self._projection_dtypes = {}
        self._replay = drawing.Replay()

    def _check_num_key_value_heads(self, num_key_value_heads):
        if num_key_value_heads is None:
            return self.num_heads
        _validation.check_positive_int(
            "num_key_value_heads", num_key_value_heads
        )
        if self.num_heads % num_key_value_heads != 0:
            raise ValueError(
                "`num_heads` is expected to be a multiple of "
                f"`num_key_value_heads`. Received: num_heads={self.num_heads}, "
                f"num_key_value_heads={num_key_value_heads}"
            )
        return num_key_value_heads

    def _attend(
        self, inputs, query, key, value, masks, causal, draw, with_scores
    ):
        """What is between the projections.

        Args:
            inputs: what the layer was called on, `[B, n, F]`.
            query: `[B, n, H, D]`.
            key: `[B, n, K, D]`.
            value: `[B, n, K, E]`.
            masks: dict of `padding_mask` and `attention_mask`.
            causal: whether a token attends to no later token.
            draw: `drawing.Draw`, what is random in this call.
            with_scores: whether the scores are wanted.

        Returns:
            `[B, n, H, E]`, and the scores `[B, H, n, n]` or `None`.
        """
        raise NotImplementedError

    def _draw(self, training):
        """Draws what is random in one call."""
        if not (training and self.dropout):
            return drawing.Draw(0.0)
        drawing.check_not_in_backward(self.name)
        return drawing.Draw(self.dropout, self._dropout_seed_generator.next())

    # Building.

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = self._check_shapes(
            query_shape, value_shape, key_shape
        )
        head_shape = (None, self.num_heads, self.key_dim)
        self._query_dense = self._projection(
            "query", "bqm,mhd->bqhd", head_shape, "hd", query_shape
        )
        head_shape = (None, self.num_key_value_heads, self.key_dim)
        self._key_dense = self._projection(
            "key", "bkm,mhd->bkhd", head_shape, "hd", key_shape
        )
        if self.use_gate:  # in this place, as in `keras.layers`
            self._gate_dense = self._projection(
                "gate",
                "bqm,mhd->bqhd",
                (None, self.num_heads, self.value_dim),
                "hd",
                query_shape,
                activation="sigmoid",
            )
        head_shape = (None, self.num_key_value_heads, self.value_dim)
        self._value_dense = self._projection(
            "value", "bkm,mhd->bkhd", head_shape, "hd", value_shape
        )
        output_shape = self._output_shape or (query_shape[-1],)
        letters = "uvwxyz"[: len(output_shape)]
        self._output_dense = self._projection(
            "attention_output",
            f"bqhd,hd{letters}->bq{letters}",
            (None, *output_shape),
            letters,
            (*query_shape[:2], self.num_heads, self.value_dim),
        )

    def _projection(
        self, name, equation, output_shape, bias_axes, input_shape, **kwargs
    ):
        options = {
            # A copy each: an initializer object gives the same values twice.
            "kernel_initializer": _copy(self.kernel_initializer),
            "bias_initializer": _copy(self.bias_initializer),
            "dtype": self.dtype_policy,
            **kwargs,
        }
        if name in self._projection_dtypes:  # quantized
            options["dtype"] = self._projection_dtypes[name]
        # The layer is rematerialised as a whole, not its projections alone.
        with keras.RematScope(mode=None):
            dense = keras.layers.EinsumDense(
                equation,
                output_shape=output_shape,
                bias_axes=bias_axes if self.use_bias else None,
                name=name,
                kernel_regularizer=self.kernel_regularizer,
                bias_regularizer=self.bias_regularizer,
                activity_regularizer=self.projection_activity_regularizer,
                kernel_constraint=self.kernel_constraint,
                bias_constraint=self.bias_constraint,
                **options,
            )
        # It computes token by token; without this Keras warns of a lost mask.
        dense.supports_masking = True
        dense.build(input_shape)
        return dense

    @property
    def query_dense(self):
        return self._query_dense

    @property
    def key_dense(self):
        return self._key_dense

    @property
    def value_dense(self):
        return self._value_dense

    @property
    def output_dense(self):
        return self._output_dense

    @property
    def gate_dense(self):
        """The projection of the gate on the output, or `None`."""
        return self._gate_dense if self.use_gate else None

    def _projections(self):
        gates = (self._gate_dense,) if self.use_gate else ()
        return (
            self._query_dense,
            self._key_dense,
            *gates,
            self._value_dense,
            self._output_dense,
        )

    # Calling.

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        query_mask = _query_mask(query, query_mask)
        value = query if value is None else value
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape)
        masks = self._masks(
            query.shape, (query_mask, value_mask, key_mask), attention_mask
        )
        self._is_causal = bool(use_causal_mask)
        output, scores = self._attend(
            query,
            self._query_dense(query),
            self._key_dense(key),
            self._value_dense(value),
            masks,
            self._is_causal,
            self._replay.draw or self._draw(training),
            return_attention_scores,
        )
        if self.use_gate:
            output = output * self._gate_dense(query)
        output = self._output_dense(output)
        if not return_attention_scores:
            return output
        return output, ops.cast(scores, self.compute_dtype)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """The call under `keras.RematScope`: draws once, computes twice."""
        if (
            super().rematerialized_call(layer_call, *args, **kwargs)
            is layer_call
        ):
            return layer_call

        def call(*args, **kwargs):
            arguments = inspect.signature(layer_call).bind(*args, **kwargs)
            arguments = arguments.arguments
            # Only float tensors go in: frameworks trace or refuse the rest.
            tensors = {
                name: arguments.pop(name)
                for name in ("query", "value", "key")
                if arguments.get(name) is not None
            }
            arguments["query_mask"] = _query_mask(
                tensors["query"], arguments.get("query_mask")
            )
            draw = self._draw(arguments.get("training"))

            def compute(*values):
                inputs = dict(zip(tensors, values))
                with self._replay.using(draw), keras.RematScope(mode=None):
                    return layer_call(**inputs, **arguments)

            return keras.remat(compute)(*tensors.values())

        return call

    def _masks(self, shape, sequence_masks, attention_mask):
        """`padding_mask` `[B, n]`, `attention_mask` `[B or 1, n or 1, n]`."""
        batch_size, length = shape[:2]
        parts = [mask for mask in sequence_masks if mask is not None]
        if attention_mask is not None:
            attention_mask = _of_pairs(attention_mask, batch_size, length)
        padding_mask = None
        for part in parts:
            part = _validation.check_padding_mask(part, batch_size, length)
            padding_mask = (
                part
                if padding_mask is None
                else ops.logical_and(padding_mask, part)
            )
        return {
            "padding_mask": padding_mask,
            "attention_mask": _validation.check_attention_mask(
                attention_mask, batch_size, length
            ),
        }

    # Shapes.

    def _check_shapes(self, query_shape, value_shape=None, key_shape=None):
        """The three shapes as tuples, or a ValueError."""
        query_shape = tuple(query_shape)
        value_shape = tuple(value_shape or query_shape)
        key_shape = tuple(key_shape or value_shape)
        received = (
            f"Received: query.shape={query_shape}, value.shape={value_shape}, "
            f"key.shape={key_shape}"
        )
        shapes = (query_shape, value_shape, key_shape)
        if any(len(shape) != 3 for shape in shapes):
            raise ValueError(
                f"`{type(self).__name__}` expects inputs of rank 3: [batch, "
                "length, features]. For several sequence axes reshape to one, "
                "or use `keras.layers.MultiHeadAttention` with "
                f"`attention_axes`. {received}"
            )
        for axis, what in ((0, "batch size"), (1, "length")):
            if len({shape[axis] for shape in shapes} - {None}) > 1:
                raise ValueError(
                    f"`{type(self).__name__}` is self-attention and expects "
                    f"query, value and key of one {what}. For cross-attention "
                    f"use `keras.layers.MultiHeadAttention`. {received}"
                )
        return shapes

    def compute_output_shape(
        self, query_shape, value_shape=None, key_shape=None
    ):
        shape, _, _ = self._check_shapes(query_shape, value_shape, key_shape)
        return (*shape[:2], *(self._output_shape or shape[2:]))

    def compute_output_spec(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        self._is_causal = bool(use_causal_mask)
        shape = self.compute_output_shape(
            query.shape,
            None if value is None else value.shape,
            None if key is None else key.shape,
        )
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch_size, length = query.shape[:2]
        scores_shape = (batch_size, self.num_heads, length, length)
        return output, keras.KerasTensor(scores_shape, dtype=self.compute_dtype)

    # Saving.

    def get_config(self):
        config = {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "use_gate": self.use_gate,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "bias_initializer": keras.initializers.serialize(
                self.bias_initializer
            ),
            "kernel_regularizer": keras.regularizers.serialize(
                self.kernel_regularizer
            ),
            "bias_regularizer": keras.regularizers.serialize(
                self.bias_regularizer
            ),
            "activity_regularizer": keras.regularizers.serialize(
                self.projection_activity_regularizer
            ),
            "kernel_constraint": keras.constraints.serialize(
                self.kernel_constraint
            ),
            "bias_constraint": keras.constraints.serialize(
                self.bias_constraint
            ),
            "seed": self.seed,
        }
        projection_dtypes = self._serialized_projection_dtypes()
        if projection_dtypes:
            config["projection_dtypes"] = projection_dtypes
        return {**super().get_config(), **config}

    def _serialized_projection_dtypes(self):
        """The dtype policy of projections that were quantized."""
        if not self.built:
            policies = self._projection_dtypes
        else:
            policies = {x.name: x.dtype_policy for x in self._projections()}
        return {
            name: keras.dtype_policies.serialize(policy)
            for name, policy in policies.items()
            if policy != self.dtype_policy
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        projection_dtypes = config.pop("projection_dtypes", {})
        layer = super().from_config(config)
        layer._projection_dtypes = {
            name: keras.dtype_policies.deserialize(policy)
            for name, policy in projection_dtypes.items()
        }
        return layer


def _query_mask(query, query_mask):
    """Keras fills `query_mask` in only for calls with several tensors."""
    if query_mask is None:
        return getattr(query, "_keras_mask", None)
    return query_mask


def _of_pairs(attention_mask, batch_size, length):
    """What Keras' layers take, as `[B or 1, n or 1, n]`."""
    attention_mask = ops.convert_to_tensor(attention_mask)
    shape = tuple(attention_mask.shape)
    if len(shape) == 2 and _may_equal(shape, (length, length)):
        return attention_mask[None]
    if len(shape) == 4 and shape[1] == 1:
        attention_mask = ops.squeeze(attention_mask, axis=1)
    if len(attention_mask.shape) == 3:
        return attention_mask
    raise ValueError(
        "`attention_mask` is expected to have shape [T, S], [B, T, S], "
        "[B, 1, S] or [B, 1, T, S]: one mask for all heads. A mask of tokens "
        "[B, T] goes to `query_mask`. "
        f"Received: attention_mask.shape={shape} for batch size {batch_size} "
        f"and length {length}"
    )


def _may_equal(shape, expected):
    pairs = zip(shape, expected)
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _check_output_shape(output_shape):
    if output_shape is None:
        return None
    if isinstance(output_shape, int):
        output_shape = (output_shape,)
    if not isinstance(output_shape, (tuple, list)) or not output_shape:
        raise ValueError(
            "`output_shape` is expected to be None, an int, or a tuple of "
            f"ints. Received: output_shape={output_shape!r}"
        )
    for size in output_shape:
        _validation.check_positive_int("output_shape", size)
    return tuple(output_shape)


def _copy(initializer):
    return type(initializer).from_config(initializer.get_config())
