"""Stochastic attention as a layer."""

import dataclasses

import keras
from keras import ops

from keras_sa import _validation
from keras_sa.layers import drawing
from keras_sa.layers.projected_attention import ProjectedAttention
from keras_sa.ops import patterns
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.windowed.stochastic import attend_in_order
from keras_sa.patterns import permutation as permutations

RESAMPLE = ("training", "always", "never")
PERMUTE = ("layer", "head")


@keras.saving.register_keras_serializable("keras_sa")
class StochasticAttention(ProjectedAttention):
    """Multi-head self-attention to a random sample of the sequence, in O(n w).

    The layer permutes the tokens at random, attends in a window over that
    order, and restores the order. No parameters are added: the weights are
    those of `keras.layers.MultiHeadAttention`, or of
    `keras.layers.GroupQueryAttention` with fewer key/value heads. Layers
    with independent permutations reach the whole sequence in O(log_w n)
    layers. Position encodings go into the inputs and are not moved.

    Give every layer its own seed, or leave `seed=None`: layers with the same
    seed have the same permutation, and do not reach further together than
    one.

    Args:
        num_heads: number of query heads.
        key_dim: size of each query and key head.
        window_size: slots in the window, the token's own included. Under a
            causal mask a token sees `(window_size + 1) / 2` keys in the mean,
            see `visible_keys_per_token`.
        neighborhood: `"window"`: the slots around the token's; `"block"`:
            slots are cut in disjoint blocks of `window_size`, which run in
            the backend's own attention kernel.
        permute: `"layer"`: one permutation for all heads; `"head"`: an
            independent one per key/value head, so that the layer reaches more
            tokens at the same cost.
        resample: `"training"`: a new permutation at every training call, a
            fixed one from the seed otherwise; `"always"`: a new one at every
            call; `"never"`: the fixed one.
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
            of them say so. Others take no slot among real tokens, are seen by
            nobody, and their attention output is 0 before the output
            projection.
        attention_mask: `[B, n]` (padding), `[B or 1, n, n]` or
            `[B, 1, n, n]`, boolean or integer, in addition.
        return_attention_scores: whether to return the scores `[B, H, n, n]`
            in the original order as well. This takes O(n^2) time and memory.
        training: whether to apply dropout and to resample.
        use_causal_mask: whether a token sees no later token, by original
            position.

    Returns:
        `[B, n, *output_shape]`, and with `return_attention_scores` the scores
        before dropout.

    Raises:
        ValueError: for inputs that are not self-attention of rank 3, or
            arguments that are not as above.

    Example:

    >>> import keras
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
        permute="layer",
        resample="training",
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        check = _validation.check_one_of
        self.window_size = _validation.check_positive_int(
            "window_size", window_size
        )
        self.neighborhood = check(
            "neighborhood", neighborhood, patterns.NEIGHBORHOODS
        )
        self.permute = check("permute", permute, PERMUTE)
        self.resample = check("resample", resample, RESAMPLE)
        self._permutation_seed_generator = (
            None
            if resample == "never"
            else keras.random.SeedGenerator(self.seed % 2**31)
        )

    def _sample_permutation(self, length, padding_mask, draw):
        """int32 `[n]`, `[B, n]` or `[B or 1, K, n]` for this call."""
        per_head = self.num_key_value_heads if self.permute == "head" else None
        return permutations.sample_permutation(
            length,
            draw.permutation_seed,
            padding_mask,
            num_key_value_heads=per_head,
        )

    def _draw(self, training):
        resamples = self.resample == "always" or (
            self.resample == "training" and training
        )
        seed = self.seed
        if resamples:
            seed = drawing.next_permutation_seed(
                self._permutation_seed_generator, self.name
            )
        return dataclasses.replace(
            super()._draw(training), permutation_seed=seed
        )

    def _attend(
        self,
        query,
        key,
        value,
        masks,
        causal,
        draw,
        exclude_local=None,
        return_lse=False,
    ):
        """`options`: more keywords of `stochastic_attention`."""
        return attend_in_order(
            check_inputs(
                query,
                key,
                value,
                is_causal=causal,
                return_lse=return_lse,
                **masks,
                **draw.dropout_keywords(),
            ),
            self._sample_permutation(
                ops.shape(query)[1], masks["padding_mask"], draw
            ),
            window_size=self.window_size,
            neighborhood=self.neighborhood,
            exclude_local=exclude_local,
        )

    def _pattern(self, query, key, padding_mask, causal, draw):
        """Boolean `[B or 1, H or 1, n, n]`."""
        permutation = self._sample_permutation(
            ops.shape(query)[1], padding_mask, draw
        )
        mask = patterns.stochastic_mask(
            permutation,
            self.window_size,
            self.neighborhood,
            causal,
        )
        if len(mask.shape) == 4:  # one per key/value head
            group = self.num_heads // self.num_key_value_heads
            return ops.repeat(mask, group, axis=1)
        return mask[:, None] if len(mask.shape) == 3 else mask[None, None]

    def attention_pattern(self, causal=False, inputs=None):
        return patterns.Stochastic(**self._pattern_options(), causal=causal)

    def _pattern_options(self):
        per_head = self.permute == "head"
        return {
            "window_size": self.window_size,
            "seed": self.seed,
            "neighborhood": self.neighborhood,
            "num_permutations": self.num_key_value_heads if per_head else None,
        }

    def visible_keys_per_token(self, length, causal=False):
        """The mean number of keys a token sees in a sequence of `length`."""
        return patterns.visible_keys_per_token(
            length, self.window_size, "stochastic", self.neighborhood, causal
        )

    def get_config(self):
        config = {
            "window_size": self.window_size,
            "neighborhood": self.neighborhood,
            "permute": self.permute,
            "resample": self.resample,
        }
        return {**super().get_config(), **config}
