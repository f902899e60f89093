"""What stands in a decoder layer where its full attention stood.

Two methods of the decoder layer and of its attention are replaced. The mask
method returns, instead of a `[B, T, S]` mask, the little that is left to say
where the pattern settles the rest: which tokens are real. The attention then
runs on queries and keys that already carry their position encodings.

Letters: `B` batch, `T` query tokens, `S` key tokens, `H` query heads, `K`
key/value heads, `D` head dim, `E` value head dim, `F` features.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading

from keras import ops

from keras_sa import ops as sa_ops
from keras_sa import patterns
from keras_sa.hub import _patching
from keras_sa.hub import decode
from keras_sa.hub._patching import by_name
from keras_sa.hub.families.family import Family
from keras_sa.hub.seeds import FirstCall
from keras_sa.ops import softmax


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one decoder layer is to get.

    Attributes:
        index: of the layer.
        decoder: the layer.
        family: its `Family`.
        pattern: the pattern that it is to attend by.
        decode: "full" or "pattern": what new tokens attend to.
        resamples: whether every training call draws anew.
        implementation: of `keras_sa.ops.attention`, or `None`.
    """

    index: int
    decoder: object
    family: Family
    pattern: patterns.Pattern
    decode: str = "full"
    resamples: bool = False
    implementation: str | None = None

    @property
    def attention(self):
        return self.family.find_attention(self.decoder)


class SwappedAttention:
    """The attention of one decoder layer, while it is swapped.

    Args:
        plan: the `Plan` of the layer.
        seeds: its `LayerSeeds`, or `None` where nothing is drawn.
        generation: the `Generation` of the model.
        gate: an `AttentionGate`, or `None`.
    """

    def __init__(self, plan, seeds, generation, gate=None):
        self.plan = plan
        self.decoder, self.family = plan.decoder, plan.family
        self.attention = plan.attention
        self.pattern = plan.pattern
        self.decodes_in_pattern = plan.decode == "pattern"
        self.is_causal = not plan.family.is_bidirectional(plan.decoder)
        self.seeds = seeds
        self.generation = generation
        self.gate = gate
        self._running = threading.local()

    def install(self, stack):
        """Puts it in place until an `ExitStack` is closed."""
        _patching.overriding(stack, self.decoder, self._decoder_methods())
        _patching.overriding(stack, self.attention, self._attention_methods())

    def bound_pattern(self, routes=None):
        """What the layer attends to outside training, a `BoundPattern`."""
        return self.pattern.bind(
            is_causal=self.is_causal,
            seed=0 if self.seeds is None else self.seeds.as_int(),
            num_key_value_heads=self.family.num_key_value_heads(self.attention),
            routes=routes,
        )

    # Its methods.

    def _decoder_methods(self):
        name = self.family.mask_method
        original = getattr(type(self.decoder), name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def compute_mask(decoder, *args, **kwargs):
            arguments = by_name(signature, decoder, args, kwargs)
            mask = self._validity(self.family.mask_arguments(arguments))
            if mask is None:
                return original(decoder, *args, **kwargs)
            return mask

        return {name: compute_mask}

    def _attention_methods(self):
        base = type(self.attention)
        signature = inspect.signature(base.call)

        @functools.wraps(base.call)
        def call(attention, *args, **kwargs):
            arguments = by_name(signature, attention, args, kwargs)
            self._running.call = self._call_arguments(arguments)
            try:
                return compute(attention, arguments, args, kwargs)
            finally:
                self._running.call = None

        if hasattr(self.family, "call"):  # it has no `_compute_attention`

            def compute(attention, arguments, args, kwargs):
                if self._is_full_step(self._running.call):
                    return base.call(attention, *args, **kwargs)
                return self.family.call(attention, self._attend, arguments)

            return {"call": call}

        def compute(attention, arguments, args, kwargs):
            return base.call(attention, *args, **kwargs)

        members = {
            "call": call,
            **_patching.ComputeAttention(self.attention).overriding(
                self._compute_attention
            ),
            **_patching.refusing_vllm(self._refuse_vllm),
        }
        if self.family.key_value_groups is not None:
            # Keys and values arrive as the cache holds them, not repeated.
            members[self.family.key_value_groups] = property(lambda _: 1)
        return members

    def _compute_attention(self, call):
        query, key, value = call.tensors
        if self._is_full_step(self._running.call):
            return call.run(query, self._repeat(key), self._repeat(value))
        output = self._attend(query, key, value, call.mask)
        return self.family.output(output)

    def _refuse_vllm(self, *args, **kwargs):
        """There, KerasHub goes around the attention that was swapped in."""
        raise ValueError(
            f"Layer {self.attention.name!r} was swapped and can't be served "
            "through vLLM, which would compute full attention. Expected: a "
            "model without a swap; call its `restore()`. Received: a vLLM "
            f"context and {self.pattern}"
        )

    # One call.

    def _call_arguments(self, arguments):
        call = self.family.call_arguments(arguments)
        if self._first_call is None:
            return call
        training = self._first_call.remember(call.training)
        return dataclasses.replace(call, training=training)

    @contextlib.contextmanager
    def replaying(self, first_call):
        """Draws no permutation but this one's."""
        outer, self._first_call = self._first_call, first_call
        try:
            yield
        finally:
            self._first_call = outer

    def make_first_call(self):
        """That of the replay that is going on, or a new one."""
        return self._first_call or FirstCall(self._draw_seed())

    @property
    def _first_call(self):
        return getattr(self._running, "first_call", None)

    @_first_call.setter
    def _first_call(self, first_call):
        self._running.first_call = first_call

    def _seed(self, training):
        """The seed of a call's permutations, or `None`."""
        if self.seeds is None:
            return None
        if not (training and self.plan.resamples):
            return self.seeds.fixed.read()
        if self._first_call is not None:
            return self._first_call.seed
        return self._draw_seed()

    def _draw_seed(self):
        return self.seeds.draw(self.attention.name)

    @contextlib.contextmanager
    def recording_routes(self):
        """A list that gets what the tokens of a first text choose."""
        self._running.routes = routes = []
        try:
            yield routes
        finally:
            self._running.routes = None

    @property
    def routes(self):
        """The list of `recording_routes`, or `None`."""
        return getattr(self._running, "routes", None)

    # Masks and caches.

    def _validity(self, arguments):
        """Which tokens are real and which rows attend to any, `[B, T, 2]`.

        `None` where the decoder's own mask is needed: for masks of the
        caller's and for steps of decoding.
        """
        sequence, cache = arguments.sequence, arguments.cache
        if not arguments.use_causal_mask:
            raise ValueError(
                f"Layer {self.decoder.name!r} was swapped and is causal. "
                "Expected: use_causal_mask=True. "
                "Received: use_causal_mask=False"
            )
        if arguments.custom_mask is not None:
            return None
        length = sequence.shape[1]
        if self._is_step(cache, sequence):
            return None
        attends = real = ops.ones_like(sequence[:, :, 0], dtype="bool")
        padding_mask = arguments.padding_mask
        if padding_mask is None:
            padding_mask = _patching.keras_mask_of(sequence)
        if padding_mask is not None:
            real = attends = ops.cast(padding_mask, "bool")
            # Whoever reads a decoder's mask asks which rows attend to any.
            if self.is_causal:
                attends = ops.cumsum(ops.cast(real, "int32"), axis=1) > 0
        elif cache is not None:
            prompt_mask = self.generation.prompt_mask(length)
            real = real if prompt_mask is None else prompt_mask
        if cache is not None and self.decodes_in_pattern:
            # The permutation is laid over the whole cache: what is not written
            # yet takes slots, and causality hides it.
            real = ops.ones_like(real)
        columns = [real] + [attends] * (_validity_columns(length) - 1)
        return ops.stack(columns, axis=-1)

    def _is_step(self, cache, inputs):
        """Whether some new tokens attend to a cache.

        Decided by static shapes: when a prompt is read, the cache is as long
        as what is put in.
        """
        if cache is None:
            return False
        length = inputs.shape[1]
        return length is None or length != self.family.cache_length(cache)

    def _is_full_step(self, call):
        """Whether new tokens attend to the whole cache, as they always did."""
        return not self.decodes_in_pattern and self._is_step(
            call.cache, call.inputs
        )

    def _repeat(self, x):
        """`[B, S, K, D]` as the original attention wants it."""
        if self.family.key_value_groups is None:
            return x
        num_heads = self.family.num_query_heads(self.attention)
        return ops.repeat(x, num_heads // x.shape[2], axis=2)

    # Attending.

    def _attend(self, query, key, value, mask):
        """`[B, T, H, E]` of query `[B, T, H, D]` and key `[B, S, K, D]`."""
        call = self._running.call
        if self._is_step(call.cache, call.inputs):
            return self._attend_in_step(query, key, value, call)
        return self._attend_in_sequence(query, key, value, mask, call)

    def _scoring(self):
        """How scores are computed in this family."""
        return {
            "scale": self.family.scale(self.attention),
            "attn_logits_soft_cap": self.family.logit_soft_cap(self.attention),
            "sinks": self.family.sinks(self.attention),
        }

    def _alibi_slopes(self):
        return self.family.alibi_slopes(self.decoder, self.attention)

    def _attend_in_sequence(self, query, key, value, mask, call):
        """A sequence that attends to itself."""
        options = self._scoring()
        rate, generator = self.family.dropout(self.attention)
        if rate and call.training:
            options |= {"dropout": rate, "dropout_seed": generator}
        dtype = value.dtype
        slopes = self._alibi_slopes()
        if slopes is not None:
            query, key, value = _with_alibi(
                query, key, value, slopes, options["scale"]
            )
        pattern, masks = self._masked(mask, ops.shape(query)[0])
        if self.routes is not None:
            self.routes.append(_find_routes(pattern, query, key, masks))
        output = sa_ops.attention(
            query,
            key,
            value,
            pattern,
            seed=self._seed(call.training),
            gates=None if self.gate is None else self.gate(call.inputs),
            implementation=self.plan.implementation,
            **masks,
            **options,
        )
        return ops.cast(output, dtype)

    def _masked(self, mask, batch_size):
        """The pattern and keywords of the ops for a decoder's mask."""
        if mask is None:
            return self.pattern, {"is_causal": self.is_causal}
        if mask.shape[-1] == _validity_columns(mask.shape[1]):
            real = ops.cast(mask[:, :, 0], "bool")
            masks = {"is_causal": self.is_causal, "padding_mask": real}
            return self.pattern, masks
        # The caller's own, with causality in it or without: it says what is
        # ahead. What nobody may attend to takes no place among the others.
        mask = ops.cast(mask, "bool")
        real = ops.any(mask, axis=1)
        real = ops.broadcast_to(real, (batch_size, ops.shape(real)[1]))
        pattern = self.pattern
        if self.is_causal:
            pattern = pattern.symmetric()
        return pattern, {"attention_mask": mask, "padding_mask": real}

    def _attend_in_step(self, query, key, value, call):
        """New tokens that attend to their neighbors in the cache."""
        length = key.shape[1]
        positions = ops.arange(ops.shape(query)[1], dtype="int32")
        positions = positions + ops.cast(call.index, "int32")
        query = self.family.query_at(self.attention, query, call.index)
        drawn = self.generation.drawn(self, length)
        slopes, scoring = self._alibi_slopes(), self._scoring()
        outputs = [
            sa_ops.neighbor_attention(
                query, key, value, neighbors, alibi_slopes=slopes, **scoring
            )
            for neighbors in decode.neighbors_of_terms(
                self.pattern, drawn, length, positions
            )
        ]
        if self.gate is None:
            return outputs[0]
        return sa_ops.gated_sum(outputs, self.gate(call.inputs))

    def draw(self, length):
        """What the pattern draws over a cache."""
        return self.pattern.draw(
            length,
            seed=0 if self.seeds is None else self.seeds.fixed.read(),
            num_key_value_heads=self.family.num_key_value_heads(self.attention),
        )


def _validity_columns(length):
    """How many columns stand for a mask `[B, T, T]`; never `T` of them."""
    return 3 if length == 2 else 2


def _find_routes(pattern, query, key, masks):
    """The routes of a first text, without its batch axis."""

    masks = {k: v for k, v in masks.items() if k != "attention_mask"}

    def find(block_size, top_k):
        return sa_ops.route_to_blocks(
            query, key, block_size=block_size, top_k=top_k, **masks
        )[0]

    return pattern.find_routes(find)


def _with_alibi(query, key, value, slopes, scale):
    """Float32 queries and keys, one channel longer: its product is the bias.

    In half precision, positions would be rounded.
    """
    query, key, value = (
        ops.cast(x, softmax.compute_dtype(x.dtype)) for x in (query, key, value)
    )
    channel = ops.convert_to_tensor(slopes, query.dtype)[:, None] / scale
    channel = ops.broadcast_to(channel, (*ops.shape(query)[:3], 1))
    length = ops.shape(key)[1]
    position = ops.cast(ops.arange(length, dtype="int32"), key.dtype)
    position = ops.broadcast_to(
        position[:, None, None], (*ops.shape(key)[:3], 1)
    )
    return (
        ops.concatenate([query, channel], axis=-1),
        ops.concatenate([key, position], axis=-1),
        value,
    )
