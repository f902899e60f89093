"""What stands in a decoder layer where its full attention stood.

Two methods of the decoder layer and of its attention are replaced. The mask
method returns, instead of a `[B, T, S]` mask, the little that is left to say
where the pattern settles the rest: which tokens are real. The attention then
runs on queries and keys that already carry their position encodings.

Letters: `B` batch, `T` query tokens, `S` key tokens, `H` query heads, `K`
key/value heads, `D` head dim, `F` features.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading

from keras import ops

from keras_sa import ops as sa_ops
from keras_sa.hub import _patching
from keras_sa.hub import decode
from keras_sa.hub._patching import by_name
from keras_sa.hub.seeds import FirstCall
from keras_sa.ops import _softmax
from keras_sa.ops.neighbors.api import neighbor_attention
from keras_sa.ops.stochastic_attention import attend_in_order
from keras_sa.patterns import permutation as permutations


class SwappedAttention:
    """The attention of one decoder layer, while it is swapped.

    Args:
        decoder: the decoder layer.
        family: its `Family`.
        pattern: the `Pattern`.
        seeds: its `LayerSeeds`, or `None` where nothing is drawn.
        generation: the `Generation` of the model.
        gate: an `AttentionGate`, or `None`.
    """

    def __init__(
        self,
        decoder,
        family,
        pattern,
        seeds,
        generation,
        gate=None,
    ):
        self.decoder = decoder
        self.attention = family.find_attention(decoder)
        self.family = family
        self.pattern = pattern
        self.seeds = seeds
        self.generation = generation
        self.gate = gate
        self._running = threading.local()

    def install(self):
        _patching.override_methods(self.decoder, self._decoder_methods())
        _patching.override_methods(self.attention, self._attention_methods())

    def remove(self):
        _patching.restore_methods(self.attention)
        _patching.restore_methods(self.decoder)

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

        def compute_attention(call):
            query, key, value = call.tensors
            if self._is_full_step(self._running.call):
                return call.run(query, self._repeat(key), self._repeat(value))
            output = self._attend(query, key, value, call.mask)
            return self.family.output(output)

        members = {
            "call": call,
            **_patching.ComputeAttention(self.attention).overriding(
                compute_attention
            ),
            **_patching.refusing_vllm(self._refuse_vllm),
        }
        if self.family.key_value_groups is not None:
            # Keys and values arrive as the cache holds them, not repeated.
            members[self.family.key_value_groups] = property(lambda _: 1)
        return members

    def _refuse_vllm(self, *args, **kwargs):
        """There, KerasHub goes around the attention that was swapped in."""
        raise ValueError(
            f"Layer {self.attention.name!r} was swapped and can't be served "
            "through vLLM, which would compute full attention. Expected: a "
            "model without a swap; call its `restore()`. Received: a vLLM "
            f"context and {self.pattern}"
        )

    def _call_arguments(self, arguments):
        call = self.family.call_arguments(arguments)
        if self._replay is None:
            return call
        training = self._replay.remember(call.training)
        return dataclasses.replace(call, training=training)

    @contextlib.contextmanager
    def replaying(self, replay):
        """Draws no permutation but this one's."""
        outer, self._replay = self._replay, replay
        try:
            yield
        finally:
            self._replay = outer

    def make_replay(self):
        """The replay that is going on, or a new one."""
        return self._replay or FirstCall(self._draw_seed())

    def permutation_seed(self, training):
        """The seed of a call's permutation."""
        if not (training and self.pattern.resamples):
            return self.seeds.fixed.read()
        return self._replay.seed if self._replay else self._draw_seed()

    def _draw_seed(self):
        return self.seeds.draw(self.attention.name)

    @property
    def _replay(self):
        return getattr(self._running, "replay", None)

    @_replay.setter
    def _replay(self, replay):
        self._running.replay = replay

    @contextlib.contextmanager
    def recording_routes(self):
        """A list that gets the blocks `[B, n, H, top_k]` of every call."""
        self._running.routes = routes = []
        try:
            yield routes
        finally:
            self._running.routes = None

    @property
    def routes(self):
        """The list of `recording_routes`, or `None`."""
        return getattr(self._running, "routes", None)

    def _validity(self, arguments):
        """Which tokens are real and which rows see something, `[B, T, 2]`.

        `None` where the decoder's own mask is needed: for masks of the
        caller's and for steps of decode.
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
        seen = real = ops.ones_like(sequence[:, :, 0], dtype="bool")
        padding_mask = arguments.padding_mask
        if padding_mask is None:
            padding_mask = _patching.keras_mask_of(sequence)
        if padding_mask is not None:
            real = ops.cast(padding_mask, "bool")
            # Whoever reads a decoder's mask asks which rows see something.
            seen = (
                real
                if self.family.is_bidirectional(self.decoder)
                else ops.cumsum(ops.cast(real, "int32"), axis=1) > 0
            )
        elif cache is not None:
            prompt_mask = self.generation.prompt_mask(length)
            real = real if prompt_mask is None else prompt_mask
        if cache is not None and self.pattern.decodes_in_window:
            # The order is laid over the whole cache: what is not written yet
            # takes slots, and causality hides it.
            real = ops.ones_like(real)
        columns = [real] + [seen] * (_validity_columns(length) - 1)
        return ops.stack(columns, axis=-1)

    def _is_step(self, cache, inputs):
        """Whether some new tokens look at a cache.

        Decided by static shapes: when a prompt is read, the cache is as long
        as what is put in.
        """
        if cache is None:
            return False
        length = inputs.shape[1]
        return length is None or length != self.family.cache_length(cache)

    def _is_full_step(self, call):
        """Whether new tokens attend to the whole cache, as they always did."""
        return not self.pattern.decodes_in_window and self._is_step(
            call.cache, call.inputs
        )

    def _repeat(self, x):
        """`[B, S, K, D]` as the original attention wants it."""
        if self.family.key_value_groups is None:
            return x
        num_heads = self.family.num_query_heads(self.attention)
        return ops.repeat(x, num_heads // x.shape[2], axis=2)

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
            "logit_soft_cap": self.family.logit_soft_cap(self.attention),
            "sinks": self.family.sinks(self.attention),
        }

    def _attend_in_sequence(self, query, key, value, mask, call):
        """A sequence that looks at itself."""
        rate, generator = self.family.dropout(self.attention)
        options = self._scoring()
        if rate and call.training:
            options |= {"dropout": rate, "seed": generator}
        dtype = value.dtype
        slopes = self.family.alibi_slopes(self.decoder, self.attention)
        if slopes is not None:
            query, key, value = _with_alibi(
                query, key, value, slopes, options["scale"]
            )
        masks, real = self._masks(mask)
        paths = _Paths(self, query, key, value, masks, real, options)
        return ops.cast(paths.attend(call), dtype)

    def _masks(self, mask):
        """Keywords of the ops for a decoder's mask, and the real tokens."""
        causal = not self.family.is_bidirectional(self.decoder)
        if mask is None:
            return {"causal": causal}, None
        if mask.shape[-1] == _validity_columns(mask.shape[1]):
            real = ops.cast(mask[:, :, 0], "bool")
            return {"causal": causal, "padding_mask": real}, real
        # The caller's own, with causality in it or without. What nobody may
        # see takes no slot among the others.
        mask = ops.cast(mask, "bool")
        return {"causal": False, "attention_mask": mask}, ops.any(mask, axis=1)

    def _attend_in_step(self, query, key, value, call):
        """New tokens that look at their neighbours in the cache."""
        pattern, length = self.pattern, key.shape[1]
        positions = ops.arange(ops.shape(query)[1], dtype="int32")
        positions = positions + ops.cast(call.index, "int32")
        query = self.family.query_at(self.attention, query, call.index)

        def attend(*neighbors):
            return neighbor_attention(
                query,
                key,
                value,
                ops.concatenate(neighbors, axis=1),
                alibi_slopes=self.family.alibi_slopes(
                    self.decoder, self.attention
                ),
                **self._scoring(),
            )

        def local(window_size):
            return decode.local_neighbors(positions, length, window_size)

        def stochastic(exclude_local=None):
            return decode.stochastic_neighbors(
                positions,
                self._order(length),
                pattern.window_size,
                pattern.neighborhood,
                exclude_local,
            )

        if pattern.mode == "sliding_window":
            return self._gated([attend(local(pattern.window_size))], call)
        if pattern.mode == "stochastic":
            return attend(stochastic())
        near = local(pattern.local_window_size)
        if not pattern.has_gates:
            return attend(stochastic(pattern.local_window_size), near)
        return self._gated([attend(stochastic()), attend(near)], call)

    def _order(self, length):
        """The order over a cache and its inverse, int32 `[length]`."""
        if self.pattern.order == "identity":
            positions = ops.arange(length, dtype="int32")
            return positions, positions
        return self.generation.order(self.seeds.fixed, length)

    def _gated(self, paths, call):
        """The gated sum of the paths; a single one without a gate as it is."""
        if self.gate is None:
            return paths[0]
        return sa_ops.gated_sum(paths, self.gate(call.inputs))


class _Paths:
    """The attentions of a sequence to itself."""

    def __init__(self, swapped, query, key, value, masks, real, options):
        self.swapped = swapped
        self.pattern = swapped.pattern
        self.tensors = (query, key, value)
        self.real = real
        self.options = {**masks, **options}

    def attend(self, call):
        pattern = self.pattern
        if pattern.mode == "sliding_window":
            paths = [self._local(pattern.window_size)]
            return self.swapped._gated(paths, call)
        if pattern.mode == "block_routed":
            return self._block_routed()
        if pattern.mode == "stochastic":
            return self._stochastic(call)
        local = pattern.local_window_size
        if pattern.has_gates:
            paths = [self._stochastic(call), self._local(local)]
            return self.swapped._gated(paths, call)
        # Sinks are in the one denominator once: with the stochastic part.
        parts = (
            self._stochastic(call, exclude_local=local, return_lse=True),
            self._local(local, return_lse=True, sinks=None),
        )
        return sa_ops.merge_attention(*zip(*parts))

    def _local(self, window_size, **options):
        if "attention_mask" in self.options:
            # The mask says what is ahead: as far that way as back.
            window_size = 2 * window_size - 1
        return sa_ops.sliding_window_attention(
            *self.tensors,
            window_size=window_size,
            **{**self.options, **options},
        )

    def _stochastic(self, call, **options):
        pattern = self.pattern
        if options.get("exclude_local") and "attention_mask" in self.options:
            options["exclude_local"] = 2 * options["exclude_local"] - 1
        return attend_in_order(
            *self.tensors,
            self._permutation(call),
            window_size=pattern.window_size,
            neighborhood=pattern.neighborhood,
            **self.options,
            **options,
        )

    def _permutation(self, call):
        """The order of the tokens, padding last."""
        length = ops.shape(self.tensors[0])[1]
        if self.pattern.order == "identity":
            order = ops.arange(length, dtype="int32")
            if self.real is None:
                return order
            return permutations.padding_last(order, self.real)
        return permutations.sample_permutation(
            length,
            self.swapped.permutation_seed(call.training),
            self.real,
            self.tensors[1].shape[2]
            if self.pattern.permute == "head"
            else None,
        )

    def _block_routed(self):
        if "attention_mask" in self.options:
            raise ValueError(
                "Block-routed attention expects no mask beside padding: its "
                "blocks are chosen before any mask. Swap another mode in. "
                "Received: an attention mask or a vision mask"
            )
        blocks = {
            "block_size": self.pattern.block_size,
            "top_k": self.pattern.top_k,
        }
        if self.swapped.routes is not None:
            self.swapped.routes.append(self._choose_blocks(blocks))
        return sa_ops.block_routed_attention(
            *self.tensors, **blocks, **self.options
        )

    def _choose_blocks(self, blocks):
        names = ("causal", "padding_mask")
        masks = {k: self.options[k] for k in names if k in self.options}
        query, key, _ = self.tensors
        return sa_ops.route_to_blocks(query, key, **blocks, **masks)


def _validity_columns(length):
    """How many columns stand for a mask `[B, T, T]`; never `T` of them."""
    return 3 if length == 2 else 2


def _with_alibi(query, key, value, slopes, scale):
    """Float32 queries and keys, one channel longer: its product is the bias.

    In half precision, positions would be rounded.
    """
    query, key, value = (
        ops.cast(x, _softmax.compute_dtype(x.dtype))
        for x in (query, key, value)
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
