"""Rows of tokens in slot order and back: what every implementation gathers.

A slot holds a token: `order[p]` is the token of slot `p`, as a permutation
says, with `n` in slots that hold none.

Letters: `B` batch, `n` tokens, `m` slots, `K` key/value heads, `F` features.
"""

from keras import ops

from keras_sa import backend
from keras_sa.patterns.permutation import as_int32
from keras_sa.patterns.permutation import starts

# Sorts after every token.
_NOBODY = 2**31 - 1


def sort_blocks(permutation, block_size, padding_mask=None):
    """Sorts the tokens of every block of slots by original position.

    Args:
        permutation: int32 tensor `[..., n]`, padding last.
        block_size: number of slots in a block; the last block may be short.
        padding_mask: optional boolean tensor `[B, n]`; padding goes last in
            its block.

    Returns:
        int32 tensor `[..., blocks * block_size]`; slots beyond the last token
        hold `n`.
    """
    length = ops.shape(permutation)[-1]
    num_blocks = (length + block_size - 1) // block_size
    lead = ops.shape(permutation)[:-1]
    keys = permutation
    if padding_mask is not None:
        real = is_real(permutation, length, padding_mask)
        keys = ops.where(real, keys, keys + length)
    keys = pad_end(keys, num_blocks * block_size - length, _NOBODY, axis=-1)
    keys = ops.sort(ops.reshape(keys, (*lead, num_blocks, block_size)), axis=-1)
    keys = ops.reshape(keys, (*lead, num_blocks * block_size))
    position = keys % length
    is_nobody = ops.cast(keys >= 2 * length, "int32")
    # No `where`: it would have `torch.compile` compile for every length.
    position = position + is_nobody * (length - position)
    return ops.cast(position, "int32")


def any_token(order, length):
    """An order with the first token in slots that hold none (`length`)."""
    return order * ops.cast(order < length, "int32")


def is_real(order, length, padding_mask=None):
    """Whether each slot holds a real token.

    Args:
        order: int32 `[m]`, `[B or 1, m]` or `[B or 1, K, m]`: the token of
            each slot, `length` where there is none.
        length: `n`.
        padding_mask: optional boolean `[B, n]`.

    Returns:
        Boolean tensor of the shape of `order`; with a padding mask its first
        axis is `B`, also for an order `[m]`.
    """
    real = order < length
    if padding_mask is None:
        return real
    if len(order.shape) == 1:
        order = order[None]
    offset = ops.arange(ops.shape(padding_mask)[0], dtype="int32")
    offset = offset * as_int32(length)
    offset = ops.reshape(offset, (-1,) + (1,) * (len(order.shape) - 1))
    index = any_token(order, length) + offset
    valid = ops.take(ops.reshape(padding_mask, (-1,)), index, axis=0)
    return ops.logical_and(real, valid)


def zero_padding(x, padding_mask):
    """`x` `[B, n, heads, features]` with 0 at padding, which may hold
    anything, also numbers whose products overflow."""
    if padding_mask is None:
        return x
    return ops.where(padding_mask[:, :, None, None], x, ops.zeros_like(x))


def pad_end(x, amount, value, axis):
    """Appends `amount` (int or scalar tensor) entries of `value`."""
    if isinstance(amount, int) and amount == 0:
        return x
    axis = axis % len(x.shape)
    shape = list(ops.shape(x))
    shape[axis] = amount
    filler = ops.full(shape, value, dtype=x.dtype)
    return ops.concatenate([x, filler], axis=axis)


def permute_heads(x, permutation, inverse=None):
    """Rows of `x` in slot order, heads beside the batch, in one gather.

    Args:
        x: `[B, n, K, F]`.
        permutation: int32 `[m]`, `[B or 1, m]` or `[B or 1, K, m]`; `None`
            for the identity, which needs no gather.
        inverse: optional slots of the tokens, int32 `[n]`, `[B or 1, n]` or
            `[B or 1, K, n]`, for a faster gradient. A slot that is no token's
            then gives none.

    Returns:
        `[B * K, m, F]`.
    """
    batch_size, length, num_heads, features = ops.shape(x)
    if permutation is None:
        x = ops.transpose(x, (0, 2, 1, 3))
        return ops.reshape(x, (batch_size * num_heads, length, features))
    index = _rows_in_slot_order(permutation, batch_size, length, num_heads)
    back = None
    if inverse is not None:
        num_slots = ops.shape(permutation)[-1]
        back = _rows_in_order(inverse, batch_size, num_slots, num_heads)
    return take_rows(x, index, back)


def unpermute_heads(x, inverse, batch_size, num_heads, permutation=None):
    """Undoes `permute_heads`: `[B * K, m, F]` to `[B, n, K, F]`.

    Args:
        x: `[B * K, m, F]` in slot order; `m >= n`, slots may be padded.
        inverse: int32 `[n]`, `[B or 1, n]` or `[B or 1, K, n]`; `None` for
            the identity.
        batch_size: `B`.
        num_heads: `K`.
        permutation: optional tokens of the slots, int32 `[m]`, `[B or 1, m]`
            or `[B or 1, K, m]`, for a faster gradient where `m == n`.
    """
    num_slots, features = ops.shape(x)[1:]
    if inverse is None:
        x = ops.reshape(x, (batch_size, num_heads, num_slots, features))
        return ops.transpose(x, (0, 2, 1, 3))
    index = _rows_in_order(inverse, batch_size, num_slots, num_heads)
    back = None
    sizes = (inverse.shape[-1], getattr(permutation, "shape", [None])[-1])
    if None not in sizes and sizes[0] == sizes[1]:
        back = _rows_in_slot_order(
            permutation, batch_size, num_slots, num_heads
        )
    return take_rows(x, index, back)


def _rows_in_slot_order(permutation, batch_size, length, num_heads):
    """Where the rows `[B * K, m]` are in a flat table `[B, n, K]`."""
    index = with_head_axis(permutation) * num_heads  # [B or 1, K or 1, m]
    index = index + _offsets(batch_size, num_heads, length * num_heads, 1)
    return ops.reshape(index, (batch_size * num_heads, -1))


def _rows_in_order(inverse, batch_size, num_slots, num_heads):
    """Where the rows `[B, n, K]` are in a flat table `[B, K, m]`."""
    index = with_head_axis(inverse)  # [B or 1, K or 1, n]
    index = index + _offsets(
        batch_size, num_heads, num_heads * num_slots, num_slots
    )
    return ops.transpose(index, (0, 2, 1))


def take_slots(x, index):
    """Rows of `x` in another order, heads where they are.

    Args:
        x: `[B, m, K, F]`.
        index: int32 `[n]`, `[B or 1, n]` or `[B or 1, K, n]` below `m`.

    Returns:
        `[B, n, K, F]`.
    """
    batch_size, num_slots, num_heads, features = ops.shape(x)
    if len(index.shape) == 3:
        # Row `(example, slot, head)` of `[B * m * K, F]`.
        index = ops.transpose(index, (0, 2, 1)) * num_heads
        index = index + ops.arange(num_heads, dtype="int32")
        index = index + starts(batch_size, num_slots * num_heads)[..., None]
        return take_rows(x, index)
    if len(index.shape) == 1:
        index = index[None]
    # All heads of a token are one row.
    x = ops.reshape(x, (batch_size, num_slots, num_heads * features))
    x = take_rows(x, index + starts(batch_size, num_slots))
    return ops.reshape(x, (batch_size, -1, num_heads, features))


def take_rows(x, index, back=None):
    """Rows of features by their place in the flat table `[..., F]`.

    Args:
        index: int32 of any shape.
        back: optional int32, for every row of the table the one place in
            `index` that names it. The gradient gathers, too: torch and
            TensorFlow need several times as long to scatter.
    """
    features = ops.shape(x)[-1]
    if back is None:
        # The middle axis keeps Keras on torch from an embedding lookup, which
        # is ten times slower than selecting rows.
        rows = ops.take(ops.reshape(x, (-1, 1, features)), index, axis=0)
    else:
        rows = backend.take_rows(
            ops.reshape(x, (-1, features)),
            ops.reshape(index, (-1,)),
            ops.reshape(back, (-1,)),
        )
    return ops.reshape(rows, (*ops.shape(index), features))


def with_head_axis(permutation):
    """`[n]`, `[B, n]` or `[B, K, n]` as `[B or 1, K or 1, n]`."""
    if len(permutation.shape) == 1:
        return permutation[None, None, :]
    if len(permutation.shape) == 2:
        return permutation[:, None, :]
    return permutation


def _offsets(batch_size, num_heads, batch_stride, head_stride):
    """Where each (example, head) starts in a flat table of rows `[B, K, 1]`."""
    batch, head = (
        starts(batch_size, batch_stride),
        starts(num_heads, head_stride),
    )
    return batch[:, None] + head[None]


def look_up(mask, example, row, column):
    """Entries of a mask for some pairs of positions; no other is read.

    Args:
        mask: `[B or 1, n or 1, n]`.
        example: int32 index of the batch; broadcasts with the positions.
        row: int32 positions of queries.
        column: int32 positions of keys.
    """
    batch_size, num_rows, length = ops.shape(mask)
    example = ops.minimum(example, batch_size - 1)  # one mask for all
    row = ops.minimum(row, num_rows - 1)  # one row for all
    index = (example * num_rows + row) * length + column
    return ops.take(ops.reshape(mask, (-1,)), index, axis=0)
