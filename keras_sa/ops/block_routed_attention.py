"""Mixture of block attention (MoBA): each query chooses the blocks it reads.

A token reads its own block and the best `top_k - 1` other blocks by the dot
product of its query with the mean key of the block. Queries that chose the
same block are packed in tiles, so that every tile is one small dense product:
O(n k b) work for blocks of b tokens, and no n x n tensor.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads,
`G = H / K`, `N = B * K`, `D` head dim, `E` value head dim, `b` tokens in a
block, `c` blocks of a sequence, `r = top_k - 1` routed blocks,
`M = N * n * G * r` pairs of a query and a block, `t` tiles, `T` pairs in a
tile.
"""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa.ops import _softmax
from keras_sa.ops import ordering
from keras_sa.ops import patterns
from keras_sa.ops import tiled_attention
from keras_sa.patterns import permutation as permutations

_TILE = 64
# Affinities at a time, where they are not too many for that.
_AFFINITIES, _MOST_RUNS = 2**17, 16
# How many are found by one maximum after the other.
_FEW = 4


def block_routed_attention(
    query,
    key,
    value,
    *,
    block_size,
    top_k,
    causal=False,
    padding_mask=None,
    attention_mask=None,
    scale=None,
    logit_soft_cap=None,
    sinks=None,
    return_lse=False,
    dropout=0.0,
    seed=None,
    implementation=None,
):
    """Attention to a token's own block and the blocks that its query chooses.

    Blocks are counted over the real tokens of each example, so padding
    changes nothing. The choice has no gradient; the attention has.

    Args:
        query: `[B, n, H, D]`, any float dtype.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        block_size: int >= 1, tokens in a block.
        top_k: int >= 1, blocks that a token reads, its own included.
        causal: whether a token sees no later token. It then chooses among
            past blocks, and its own block is masked causally.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. Padding is
            seen by nobody, and its output is 0.
        attention_mask: optional `[B or 1, n, n]`, true or 1 where a row may
            see a column, in addition. It does not change the choice.
        scale: factor on the scores; default `1 / sqrt(D)`.
        logit_soft_cap: optional `c`: scores become `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        return_lse: whether to return the log-sum-exp of the scores as well.
        dropout: rate of dropout on the attention weights.
        seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` or "portable".

    Returns:
        `[B, n, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, n, H]`, float32 at least.

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> keras_sa.ops.block_routed_attention(
    ...     x, x, x, block_size=16, top_k=3, causal=True
    ... ).shape
    (2, 100, 4, 16)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """
    block_size = _validation.check_positive_int("block_size", block_size)
    top_k = _validation.check_positive_int("top_k", top_k)
    _validation.check_one_of(
        "implementation", implementation, (None, "portable")
    )
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    _validation.check_qkv(query, key, value)
    batch_size, length = query.shape[:2]
    if isinstance(length, int):
        block_size = min(block_size, length)  # one block holds everything
    padding_mask = _validation.check_padding_mask(
        padding_mask, batch_size, length
    )
    attention_mask = _validation.check_attention_mask(
        attention_mask, batch_size, length
    )
    scale = (
        query.shape[-1] ** -0.5
        if scale is None
        else _validation.check_number("scale", scale)
    )
    logit_soft_cap = _validation.check_number("logit_soft_cap", logit_soft_cap)
    sinks = _validation.check_sinks(sinks, query.shape[2])
    dropout = _validation.check_rate("dropout", dropout)
    slots = _Slots(key, block_size, padding_mask)
    group = query.shape[2] // key.shape[2]
    rows = [slots.heads(x) for x in (query, key, value)]

    attend = functools.partial(
        tiled_attention.attend_to_tiles,
        scale=scale,
        logit_soft_cap=logit_soft_cap,
    )
    drop = None
    if dropout:
        drop = functools.partial(keras.random.dropout, rate=dropout, seed=seed)
    parts = [
        _own_part(rows, slots, group, causal, attention_mask, drop, attend)
    ]
    if top_k > 1:
        choices = _choose_blocks(*rows[:2], slots, group, top_k, causal)
        tiles = _Tiles.pack(choices, slots)
        if isinstance(seed, int):
            seed = seed + 1  # the own blocks took the numbers of `seed`
        drop = tiles.dropout(dropout, seed, block_size) if dropout else None
        parts += _routed_parts(
            rows, slots, group, tiles, causal, attention_mask, drop, attend
        )
    output, lse = _divide(parts, slots, sinks)
    shape = (slots.batch_size, slots.length, query.shape[2])
    output = ops.reshape(slots.restore(output), (*shape, value.shape[3]))
    output = ordering.zero_padding(ops.cast(output, value.dtype), padding_mask)
    if not return_lse:
        return output
    lse = ops.reshape(slots.restore(lse), shape)
    if padding_mask is not None:
        lse = ops.where(padding_mask[:, :, None], lse, -float("inf"))
    return output, lse


def route_to_blocks(
    query, key, *, block_size, top_k, causal=False, padding_mask=None
):
    """The blocks that each query of `block_routed_attention` reads.

    Args:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`; `K` divides `H`.
        block_size, top_k, causal, padding_mask: as in
            `block_routed_attention`.

    Returns:
        int32 `[B, n, H, top_k]`: the own block, then the others, best first;
        -1 where there are no more to choose.

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> keras_sa.ops.route_to_blocks(x, x, block_size=16, top_k=3).shape
    (2, 100, 4, 3)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """
    block_size = _validation.check_positive_int("block_size", block_size)
    top_k = _validation.check_positive_int("top_k", top_k)
    query, key = (ops.convert_to_tensor(x) for x in (query, key))
    _validation.check_qkv(query, key, key)
    padding_mask = _validation.check_padding_mask(
        padding_mask, *query.shape[:2]
    )
    slots = _Slots(key, block_size, padding_mask)
    num_heads, num_kv_heads = query.shape[2], key.shape[2]
    group = num_heads // num_kv_heads
    blocks = ops.broadcast_to(
        slots.own_block()[None, :, None, None], slots.shape(group, 1)
    )  # [N, n, G, 1]
    if top_k > 1:
        rows = (slots.heads(query), slots.heads(key))
        chosen, is_choice = _choose_blocks(*rows, slots, group, top_k, causal)
        chosen = ops.where(is_choice, chosen, -1)
        blocks = ops.concatenate([blocks, chosen], axis=-1)
    # Floats, which hold any number of blocks: rows of features are gathered.
    blocks = ops.reshape(
        ops.cast(blocks, "float32"), slots.shape(group * top_k)
    )
    shape = (-1, slots.length, num_heads, top_k)
    return ops.cast(ops.reshape(slots.restore(blocks), shape), "int32")


def routed_blocks(query, key, *, block_size, top_k, causal, padding_mask=None):
    """Boolean `[B, n, H, c]`: the blocks each query reads, its own included.

    Args: as in `route_to_blocks`.
    """
    blocks = route_to_blocks(
        query,
        key,
        block_size=block_size,
        top_k=top_k,
        causal=causal,
        padding_mask=padding_mask,
    )
    num_blocks = (ops.shape(key)[1] + block_size - 1) // block_size
    return ops.any(ops.one_hot(blocks, num_blocks) > 0, axis=3)


class _Slots:
    """The tokens of each example in order, padding last, cut in blocks."""

    def __init__(self, key, block_size, padding_mask):
        self.batch_size, self.length, self.num_kv_heads = ops.shape(key)[:3]
        self.block_size = block_size
        self.num_blocks = (self.length + block_size - 1) // block_size
        self.padding_mask = padding_mask
        self.order = None  # [B, n], or `None` for the identity
        if padding_mask is not None:
            order = ops.arange(self.length, dtype="int32")
            self.order = permutations.padding_last(order, padding_mask)

    @property
    def are_full(self):
        """Whether all blocks are known to be full of real tokens."""
        is_known = self.padding_mask is None and isinstance(self.length, int)
        return is_known and self.length % self.block_size == 0

    def shape(self, *features):
        """`(N, n, *features)`."""
        rows = self.batch_size * self.num_kv_heads
        return (rows, self.length, *features)

    def own_block(self):
        """The block of each slot `[n]`."""
        return ops.arange(self.length, dtype="int32") // self.block_size

    def heads(self, x):
        """`[B, n, K * G, F]` in slot order `[N, n, G * F]`, padding zero."""
        x = ordering.zero_padding(x, self.padding_mask)
        features = x.shape[2] // self.num_kv_heads * x.shape[3]
        shape = (self.batch_size, self.length, self.num_kv_heads, features)
        x = ordering.permute_heads(ops.reshape(x, shape), self.order)
        return ops.cast(x, _softmax.compute_dtype(x.dtype))

    def blocks(self, x):
        """`[N, n, ...]` as `[N, c, b, ...]`."""
        rows, length, *features = ops.shape(x)
        missing = self.num_blocks * self.block_size - length
        x = ordering.pad_end(x, missing, 0, axis=1)
        return ops.reshape(
            x, (rows, self.num_blocks, self.block_size, *features)
        )

    def flat_blocks(self, x):
        """`[N, n, ...]` as `[N * c, b, ...]`."""
        return ops.reshape(self.blocks(x), (-1, self.block_size, *x.shape[2:]))

    def is_real(self):
        """Boolean `[N, n]`: the slots that hold real tokens."""
        rows, length = self.shape()
        if self.padding_mask is None:
            return ops.ones((rows, length), dtype="bool")
        real = ordering.is_real(self.order, length, self.padding_mask)
        return ops.repeat(real, self.num_kv_heads, axis=0)

    def restore(self, x):
        """`[N, n, F]` in slot order as `[B, n, K, F]`."""
        inverse = None
        if self.order is not None:
            inverse = permutations.invert_permutation(self.order)
        return ordering.unpermute_heads(
            x, inverse, self.batch_size, self.num_kv_heads
        )


def _choose_blocks(query, key, slots, group, top_k, causal):
    """The routed blocks: ids `[N, n, G, r]` and which of them are choices.

    Args:
        query: `[N, n, G*D]`, in slot order.
        key: `[N, n, D]`, in slot order.
    """
    query, key = ops.stop_gradient(query), ops.stop_gradient(key)
    mean, is_empty = _mean_keys(key, slots)
    query = ops.reshape(query, slots.shape(group, key.shape[2]))
    parts = []
    for start, stop in _runs_of_blocks(slots, group):
        # What is later is not read.
        last = stop if causal else None
        parts.append(
            _choose_for_some(
                query[:, start * slots.block_size : stop * slots.block_size],
                mean[:, :last],
                None if is_empty is None else is_empty[:, :last],
                slots.own_block()[
                    start * slots.block_size : stop * slots.block_size
                ],
                top_k - 1,
                causal,
            )
        )
    chosen, is_choice = (
        ops.concatenate(x, axis=1) if len(x) > 1 else x[0] for x in zip(*parts)
    )
    if slots.padding_mask is not None:
        is_choice = ops.logical_and(
            is_choice, slots.is_real()[:, :, None, None]
        )
    return chosen, is_choice


def _runs_of_blocks(slots, group):
    """Where runs of blocks start and stop whose queries choose together."""
    num_blocks = slots.num_blocks
    if not isinstance(num_blocks, int):
        return [(0, num_blocks)]
    affinities = slots.length * slots.num_kv_heads * group * num_blocks
    num_runs = min(-(-affinities // _AFFINITIES), _MOST_RUNS)
    step = -(-num_blocks // num_runs)
    return [
        (start, min(start + step, num_blocks))
        for start in range(0, num_blocks, step)
    ]


def _choose_for_some(query, mean, is_empty, own, num_routed, causal):
    """The choice of some queries.

    Args:
        query: `[N, q, G, D]`.
        mean: the mean keys `[N, c, D]`.
        is_empty: boolean `[N, c]`, or `None`.
        own: the block of each query `[q]`.
    """
    affinity = ops.einsum("nigd,ncd->nigc", query, mean)
    block = ops.arange(ops.shape(mean)[1], dtype="int32")
    if causal:
        eligible = block[None, :] < own[:, None]
    else:
        eligible = block[None, :] != own[:, None]
    eligible = eligible[None, :, None, :]
    if is_empty is not None:
        is_full = ops.logical_not(is_empty)[:, None, None, :]
        eligible = ops.logical_and(eligible, is_full)
    lowest = float(np.finfo(keras.backend.standardize_dtype(mean.dtype)).min)
    # A sum is several times faster than a choice on torch.
    hidden = ops.where(eligible, 0.0, lowest / 2)
    affinity = affinity + ops.cast(hidden, affinity.dtype)
    num_blocks = mean.shape[1]
    if num_blocks is None or num_blocks < num_routed:
        affinity = ordering.pad_end(affinity, num_routed, lowest, axis=3)
    best, chosen = _top_k(affinity, num_routed)
    return ops.cast(chosen, "int32"), best > lowest / 4


def _top_k(x, k):
    """Values and indices `[..., k]` of the largest of a row, in order."""
    if keras.config.backend() == "torch":
        from keras_sa.ops import torch_top_k

        return torch_top_k.top_k(x, k)
    if k > _FEW:
        return ops.top_k(x, k)
    # One maximum after the other is several times faster for a few.
    column = ops.arange(ops.shape(x)[-1], dtype="int32")
    values, indices = [], []
    for _ in range(k):
        highest = ops.amax(x, axis=-1, keepdims=True)
        places = ops.where(x == highest, column, ops.shape(x)[-1])
        index = ops.amin(places, axis=-1, keepdims=True)
        x = ops.where(column == index, -float("inf"), x)
        values.append(highest)
        indices.append(index)
    return ops.concatenate(values, axis=-1), ops.concatenate(indices, axis=-1)


def _mean_keys(key, slots):
    """The mean key of each block `[N, c, D]`, and boolean `[N, c]`: the blocks
    without a real token, or `None` where there are none."""
    keys = slots.blocks(key)  # [N, c, b, D]
    if slots.are_full:
        return ops.mean(keys, axis=2), None
    count = ops.sum(ops.cast(slots.blocks(slots.is_real()), key.dtype), axis=2)
    mean = ops.sum(keys, axis=2) / ops.maximum(count, 1)[..., None]
    return mean, count == 0


@dataclasses.dataclass(frozen=True)
class _Tiles:
    """Pairs of a query and a block, packed by block.

    Attributes:
        block: `[t]`: the block of each tile, counted over all of `N * c`.
        pair: `[t, T]`: the pairs in each tile.
        is_pair: boolean `[t, T]`: places in use.
        place: `[M]`: where each pair is in the flat tiles.
        is_choice: boolean `[M]`: the pairs that are a real choice.
        num_routed: `r`.
    """

    block: Any
    pair: Any
    is_pair: Any
    place: Any
    is_choice: Any
    num_routed: int

    @classmethod
    def pack(cls, choices, slots):
        chosen, is_choice = choices  # [N, n, G, r]
        rows, num_routed = ops.shape(chosen)[0], chosen.shape[3]
        total = rows * slots.num_blocks  # blocks of all sequences
        sequence = ops.arange(rows, dtype="int32")[:, None, None, None]
        block = ops.where(
            is_choice, sequence * slots.num_blocks + chosen, total
        )
        block = ops.reshape(ops.cast(block, "int32"), (-1,))  # [M]
        order = _order_by_block(block, total)
        start = ops.searchsorted(
            ops.take(block, order, axis=0), ops.arange(total + 1, dtype="int32")
        )
        start = ops.cast(start, "int32")  # the first pair of each block
        tiles = (start[1:] - start[:-1] + _TILE - 1) // _TILE
        tile_end = ops.cumsum(tiles)
        tile_start = tile_end - tiles
        num_pairs = ops.shape(block)[0]
        num_tiles = num_pairs // _TILE + total  # the most there can be
        tile = ops.arange(num_tiles, dtype="int32")
        tile_block = ops.searchsorted(
            ops.cast(tile_end, "int32"), tile, side="right"
        )
        tile_block = ops.minimum(ops.cast(tile_block, "int32"), total - 1)
        first = _take(start, tile_block) + _TILE * (
            tile - ops.cast(_take(tile_start, tile_block), "int32")
        )
        rank = first[:, None] + ops.arange(_TILE, dtype="int32")
        is_pair = rank < _take(start, tile_block + 1)[:, None]
        pair = _take(order, ops.minimum(rank, num_pairs - 1))
        known = ops.minimum(block, total - 1)
        place = permutations.invert_permutation(order) - _take(start, known)
        place = place + _TILE * ops.cast(_take(tile_start, known), "int32")
        is_choice = ops.reshape(is_choice, (-1,))
        place = ops.where(is_choice, place, 0)
        return cls(tile_block, pair, is_pair, place, is_choice, num_routed)

    def dropout(self, rate, seed, block_size):
        """Dropout that goes with the pair, wherever it is packed: the packing
        depends on what later tokens choose."""
        ones = ops.ones((ops.shape(self.place)[0], block_size))
        factors = keras.random.dropout(ones, rate, seed=seed)  # [M, b]

        def drop(weights):
            return weights * ops.cast(_take(factors, self.pair), weights.dtype)

        return drop


def _order_by_block(block, total):
    """The pairs by block `[M]`, each block's in their order."""
    num_pairs = ops.shape(block)[0]
    is_jax = keras.config.backend() == "jax"
    if is_jax and isinstance(num_pairs, int) and isinstance(total, int):
        if (total + 1) * num_pairs <= 2**31:
            # XLA sorts numbers four times faster than numbers with an index.
            numbers = block * num_pairs + ops.arange(num_pairs, dtype="int32")
            return ops.sort(numbers) % num_pairs
    return permutations.order_by(block)


def _take(x, index):
    return ops.take(x, index, axis=0)


def _own_part(rows, slots, group, causal, attention_mask, drop, attend):
    """Attention to the own block.

    Args:
        rows: query `[N, n, G*D]`, key `[N, n, D]` and value `[N, n, E]`, in
            slot order.
        attend: `tiled_attention.attend_to_tiles`.

    Returns:
        As from `attend`, `[N, n, G, ...]`.
    """
    query, key, value = rows
    num_blocks = slots.shape()[0] * slots.num_blocks
    block = ops.arange(num_blocks, dtype="int32")
    row = ops.arange(slots.block_size * group, dtype="int32")
    visible = None
    if causal:  # what is missing in the last block comes last
        column = ops.arange(slots.block_size, dtype="int32")
        visible = (row // group)[None, :, None] >= column
    elif not slots.are_full:
        visible = slots.flat_blocks(slots.is_real())[:, None, :]
    if attention_mask is not None:
        slot = block % slots.num_blocks * slots.block_size
        slot = ops.minimum(slot[:, None] + row // group, slots.length - 1)
        visible = _both(visible, _look_up(attention_mask, slot, block, slots))
    part = attend(
        ops.reshape(slots.blocks(query), (-1, key.shape[2])),
        slots.flat_blocks(key),
        slots.flat_blocks(value),
        block[:, None] * row.shape[0] + row,
        block,
        visible,
        drop=drop,
    )

    def restore(x):
        shape = (slots.shape()[0], -1, group, x.shape[2])
        return ops.reshape(x, shape)[:, : slots.length]

    return [restore(x) for x in part]


def _both(visible, others):
    return others if visible is None else ops.logical_and(visible, others)


def _routed_parts(
    rows, slots, group, tiles, causal, attention_mask, drop, attend
):
    """Attention to the routed blocks: `r` parts, as in `_own_part`."""
    query, key, value = rows
    row = tiles.pair // tiles.num_routed  # [t, T] of N * n * G
    visible = None
    if not (causal or slots.are_full):  # blocks in the past are full
        visible = _take(slots.flat_blocks(slots.is_real()), tiles.block)[
            :, None
        ]
    if attention_mask is not None:
        slot = row // group % slots.length
        visible = _both(
            visible, _look_up(attention_mask, slot, tiles.block, slots)
        )
    part = attend(
        ops.reshape(query, (-1, key.shape[2])),
        slots.flat_blocks(key),
        slots.flat_blocks(value),
        row,
        tiles.block,
        visible,
        drop=drop,
    )
    place = ops.reshape(tiles.place, (-1, tiles.num_routed))
    is_choice = ops.reshape(
        tiles.is_choice, slots.shape(group, tiles.num_routed, 1)
    )

    def restore(x):
        """`[t, T, F]` as `r` tensors `[N, n, G, F]`."""
        features = x.shape[2]
        parts = _take_columns(ops.reshape(x, (-1, features)), place)
        return [ops.reshape(y, slots.shape(group, features)) for y in parts]

    return [*zip(*(restore(x) for x in part), ops.unstack(is_choice, axis=3))]


def _take_columns(x, index):
    """Rows of `x` `[P, F]`: for each column of `index` `[L, r]`, `[L, F]`."""
    columns = ops.unstack(index, axis=1)
    if keras.config.backend() != "jax":
        # The gradient of every gather would be as large as `x`.
        index = ops.stack(columns, axis=0)
        return ops.unstack(ordering.take_rows(x, index), axis=0)
    # Compilers multiply what they gather without storing it.
    return [ordering.take_rows(x, column) for column in columns]


def _divide(parts, slots, sinks):
    """One softmax over the union of the parts.

    Returns:
        Output `[N, n, G * E]` and log-sum-exp `[N, n, G]`.
    """
    (highest, total, weighted), *routed = parts
    for part_highest, *_ in routed:
        highest = ops.maximum(highest, part_highest)
    if sinks is not None:
        shape = (1, slots.num_kv_heads, 1, -1, 1)
        sinks = ops.reshape(ops.cast(sinks, total.dtype), shape)
        sinks = ops.broadcast_to(sinks, (slots.batch_size, *sinks.shape[1:]))
        sinks = ops.reshape(sinks, (-1, *sinks.shape[2:]))  # [N, 1, G, 1]
        highest = ops.maximum(highest, ops.stop_gradient(sinks))
    share = ops.exp(parts[0][0] - highest)
    total, weighted = share * total, share * weighted
    for part_highest, part_total, part_weighted, is_choice in routed:
        share = ops.exp(part_highest - highest)
        share = ops.where(is_choice, share, ops.zeros_like(share))
        total = total + share * part_total
        weighted = weighted + share * part_weighted
    if sinks is not None:
        total = total + ops.exp(sinks - highest)
    nothing = total == 0
    safe_total = ops.where(nothing, ops.ones_like(total), total)
    output = weighted / safe_total
    lse = ops.where(nothing, -float("inf"), highest + ops.log(safe_total))
    return (
        ops.reshape(output, slots.shape(-1)),
        ops.reshape(lse, slots.shape(-1)),
    )


def _look_up(mask, slot, block, slots):
    """Boolean `[t, T, b]`: the attention mask for each pair's block.

    Args:
        slot: `[t, T]`: the query's slot in its sequence.
        block: `[t]`: the block, counted over all of `N * c`.
    """
    length = slots.length
    example = block // slots.num_blocks // slots.num_kv_heads  # [t]
    key_slot = block % slots.num_blocks * slots.block_size
    key_slot = key_slot[:, None] + ops.arange(slots.block_size, dtype="int32")
    key_slot = ops.minimum(key_slot, length - 1)  # [t, b]

    def position(slot):
        """`[t, ...]`: the token in a slot of the tile's example."""
        if slots.order is None:
            return slot
        flat = ops.reshape(slots.order, (-1,))
        return _take(flat, example[:, None] * length + slot)

    return patterns.look_up(
        mask,
        example[:, None, None],
        position(slot)[:, :, None],
        position(key_slot)[:, None, :],
    )
