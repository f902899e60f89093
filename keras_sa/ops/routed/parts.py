"""Attention to the own block, to the routed blocks, and to their union.

Letters: as in `api.py`.
"""

import keras
from keras import ops

from keras_sa.ops import ordering


def own_part(rows, slots, group, is_causal, attention_mask, drop, attend):
    """Attention to the own block.

    Args:
        rows: query `[N, n, G*D]`, key `[N, n, D]` and value `[N, n, E]`, in
            slot order.
        attend: `attend.attend_to_tiles`.

    Returns:
        As from `attend`, `[N, n, G, ...]`.
    """
    query, key, value = rows
    num_blocks = slots.shape()[0] * slots.num_blocks
    block = ops.arange(num_blocks, dtype="int32")
    row = ops.arange(slots.block_size * group, dtype="int32")
    visible = None
    if is_causal:  # what is missing in the last block comes last
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


def routed_parts(
    rows, slots, group, tiles, is_causal, attention_mask, drop, attend
):
    """Attention to the routed blocks: `r` parts, as in `own_part`."""
    query, key, value = rows
    row = tiles.pair // tiles.num_routed  # [t, T] of N * n * G
    visible = None
    if not (is_causal or slots.are_full):  # blocks in the past are full
        visible = ops.take(
            slots.flat_blocks(slots.is_real()), tiles.block, axis=0
        )[:, None]
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


def divide(parts, slots, sinks):
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
        return ops.take(flat, example[:, None] * length + slot, axis=0)

    return ordering.look_up(
        mask,
        example[:, None, None],
        position(slot)[:, :, None],
        position(key_slot)[:, None, :],
    )
