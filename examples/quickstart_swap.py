"""The swap of the quickstart: other attentions inside a KerasHub model.

The weights stay. Queries and keys arrive with their rotary position encodings,
which are those of the original positions, so nothing else has to change.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim.
"""

import dataclasses

import keras
from keras import ops

import keras_sa


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Which attention, and how wide."""

    kind: str
    window_size: int | None = None  # of "block_routed": the tokens in a block
    local_window_size: int | None = None
    neighborhood: str = "window"
    top_k: int | None = None

    @property
    def is_random(self):
        return self.kind in ("stochastic", "small_world", "gated_small_world")


FULL = Pattern("full")


class SparseAttention(keras.layers.Layer):
    """Stands where the `_compute_attention` of one decoder layer stood."""

    def __init__(self, attention, **kwargs):
        super().__init__(**kwargs)
        self.full_attention = attention._compute_attention
        self.num_heads = attention.num_query_heads
        self.group_size = attention.num_key_value_groups
        self.head_dim = attention.head_dim
        self.scale = attention._inv_norm_factor
        self.pattern = FULL
        self.prompt_length = None
        # A weight, so that another permutation needs no new compilation.
        self.seed = self.add_weight(
            name="seed",
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
        )
        # Both gates of a head read its query. Logits start at 0: the mean.
        self.gate = keras.layers.EinsumDense(
            "bnhd,hdp->bnhp",
            (None, self.num_heads, 2),
            activation="sigmoid",
            bias_axes="hp",
            kernel_initializer="zeros",
            name="gate",
        )
        self.gate.build((None, None, self.num_heads, self.head_dim))
        self.gate.trainable = False  # until a pattern needs it
        self.built = True

    def attend(self, query, key, value, attention_mask=None, **kwargs):
        """`[B, n, H, D]`, all three: KerasHub repeated the key/value heads."""
        is_prefill = query.shape[1] == key.shape[1] != 1
        if self.pattern.kind == "full" or not is_prefill:
            # A step of `generate()` looks at the whole cache.
            return self.full_attention(
                query, key, value, attention_mask, **kwargs
            )
        # The sparse ops group heads themselves: [B, n, K, D] is enough.
        key, value = (x[:, :, :: self.group_size] for x in (key, value))
        return self(query, key, value)

    def call(self, query, key, value, training=False):
        if training:
            # A new permutation at every training step.
            self.seed.assign(self.seed + 1)
        pattern = self.pattern
        common = {
            "causal": True,
            "scale": self.scale,
            "padding_mask": self._prompt_mask(query),
        }
        inputs = (query, key, value)
        if pattern.kind == "block_routed":
            return keras_sa.ops.block_routed_attention(
                *inputs,
                block_size=pattern.window_size,
                top_k=pattern.top_k,
                **common,
            )
        if pattern.kind == "sliding_window":
            return self._local(*inputs, pattern.window_size, **common)
        if pattern.kind == "stochastic":
            return self._stochastic(*inputs, **common)
        if pattern.kind == "small_world":  # one softmax over the keys of both
            local_window_size = pattern.local_window_size
            parts = (
                self._stochastic(
                    *inputs,
                    exclude_local=local_window_size,
                    return_lse=True,
                    **common,
                ),
                self._local(
                    *inputs, local_window_size, return_lse=True, **common
                ),
            )
            return keras_sa.ops.merge_attention(*zip(*parts))
        if pattern.kind == "gated_small_world":
            paths = (
                self._stochastic(*inputs, **common),
                self._local(*inputs, pattern.local_window_size, **common),
            )
            gates = ops.split(self.gate(query), 2, axis=-1)  # [B, n, H, 1]
            return keras_sa.ops.gated_sum(paths, gates)
        raise ValueError(f"Unknown kind of pattern. Received: {pattern}")

    def _local(self, query, key, value, window_size, **kwargs):
        return keras_sa.ops.sliding_window_attention(
            query, key, value, window_size=window_size, **kwargs
        )

    def _stochastic(self, query, key, value, **kwargs):
        permutation = keras_sa.ops.sample_permutation(
            query.shape[1], self.seed, kwargs["padding_mask"]
        )
        return keras_sa.ops.stochastic_attention(
            query,
            key,
            value,
            permutation,
            window_size=self.pattern.window_size,
            neighborhood=self.pattern.neighborhood,
            **kwargs,
        )

    def _prompt_mask(self, query):
        """Boolean `[B, n]`: `generate()` runs over the room for new tokens,
        which must not take the places of real ones."""
        if self.prompt_length is None:
            return None
        batch_size, length = ops.shape(query)[:2]
        return ops.broadcast_to(
            ops.arange(length) < self.prompt_length, (batch_size, length)
        )


def install(causal_lm):
    """Puts a `SparseAttention` in every decoder layer; full attention first."""
    sparse_attentions = []
    for index, layer in enumerate(causal_lm.backbone.transformer_layers):
        attention = layer._self_attention_layer
        sparse = SparseAttention(attention, name=f"sparse_attention_{index}")
        attention._compute_attention = sparse.attend
        sparse_attentions.append(sparse)
    # As an attribute, so that seeds and gates belong to the model's weights.
    causal_lm.sparse_attentions = sparse_attentions


def use_pattern(causal_lm, pattern, prompt_length=None):
    """Switches every layer to a pattern. No weight changes."""
    for sparse in causal_lm.sparse_attentions:
        sparse.pattern = pattern
        sparse.prompt_length = prompt_length
        sparse.gate.trainable = pattern.kind == "gated_small_world"
    # The functions that were compiled hold the pattern before.
    causal_lm.train_function = None
    causal_lm.test_function = None
    causal_lm.predict_function = None
    causal_lm.generate_function = None


def draw_permutations(causal_lm, rng):
    """Gives every layer a seed of its own: reach multiplies over layers only
    if their permutations are independent."""
    for sparse in causal_lm.sparse_attentions:
        sparse.seed.assign(int(rng.integers(2**30)))


def largest_gate(causal_lm):
    """The largest weight of the gates, which start at 0."""
    return max(
        float(ops.max(ops.abs(weight)))
        for sparse in causal_lm.sparse_attentions
        for weight in sparse.gate.weights
    )
