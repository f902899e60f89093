"""Random orders of tokens, the same bit for bit on every backend.

`permutation[p]` is the original position of the token in slot `p`, and
`inverse[permutation[p]] == p`.

Letters: `B` batch, `n` tokens, `K` key/value heads.
"""

import keras
import numpy as np
from keras import ops

from keras_sa.ops import _validation

# The multipliers and shifts of the 32-bit mixer "triple32" by C. Wellons
# (https://nullprogram.com/blog/2018/07/31/), which is a bijection.
_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
_LAST_SHIFT = 14
# Independent streams of one seed: the fractional digits of sqrt(2), sqrt(3)
# and sqrt(5) as 32-bit words.
_STREAM_BEFORE, _STREAM_AFTER, _STREAM_SPLIT = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
)
_LARGEST = 2**31 - 1


def _int32(word):
    """A 32-bit word as the signed integer with the same bits."""
    return np.int32(word - 2**32 if word >= 2**31 else word)


def _shift_right(x, bits):
    """Logical shift: `ops.right_shift` repeats the sign bit."""
    return ops.bitwise_and(ops.right_shift(x, bits), 2 ** (32 - bits) - 1)


def _mix(x):
    """A bijection of 32-bit integers that looks random."""
    for bits, multiplier in _ROUNDS:
        x = ops.bitwise_xor(x, _shift_right(x, bits))
        x = ops.multiply(x, ops.convert_to_tensor(_int32(multiplier), "int32"))
    return ops.bitwise_xor(x, _shift_right(x, _LAST_SHIFT))


def _stream(seed, word):
    return _mix(
        ops.bitwise_xor(seed, ops.convert_to_tensor(_int32(word), "int32"))
    )


def hash32(seed, counter):
    """Mixes an integer seed and int32 counters into int32 hashes.

    For one seed it is a bijection of the counter, so that two ranks never
    tie. The seed enters before and after a first mixing; entering once would
    make the orders of some seeds shifted copies of one another.

    Args:
        seed: int32 scalar tensor, or one that broadcasts with `counter`.
        counter: int32 tensor.

    Returns:
        int32 tensor of the broadcast shape.
    """
    mixed = _mix(ops.bitwise_xor(counter, _stream(seed, _STREAM_BEFORE)))
    return _mix(ops.bitwise_xor(mixed, _stream(seed, _STREAM_AFTER)))


def seed_to_int32(seed):
    """Returns a seed as an int32 tensor with the same low 32 bits."""
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        _validation.check_seed(seed)
        return ops.convert_to_tensor(_int32(int(seed) % 2**32), "int32")
    tensor = ops.convert_to_tensor(seed)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "int" not in dtype or len(tensor.shape) != 0:
        raise ValueError(
            "`seed` is expected to be an integer or an integer scalar tensor. "
            f"Received: seed={seed} of dtype {dtype} and shape "
            f"{tuple(tensor.shape)}"
        )
    return ops.cast(tensor, "int32")


def split_seed(seed, num):
    """Returns `num` independent int32 seeds, shape `[num]`."""
    stream = _stream(seed_to_int32(seed), _STREAM_SPLIT)
    return hash32(stream, ops.arange(num, dtype="int32"))


def valid_ranks(padding_mask):
    """Ranks `[B, n]`: real tokens first, in order, then padding, in order."""
    valid = ops.cast(padding_mask, "int32")  # [B, n]
    num_valid = ops.sum(valid, axis=-1, keepdims=True)
    rank_if_valid = ops.cumsum(valid, axis=-1) - 1
    rank_if_padding = num_valid + ops.cumsum(1 - valid, axis=-1) - 1
    return ops.cast(
        ops.where(padding_mask, rank_if_valid, rank_if_padding), "int32"
    )


def sample_permutation(
    length, seed, padding_mask=None, num_key_value_heads=None
):
    """Draws a random order of the tokens from an integer seed.

    `argsort(hash32(seed, rank))`: a counter-based hash, so that the same seed
    gives the same permutation on every backend, eager or compiled, and the
    order of two tokens does not depend on the length.

    Args:
        length: number of tokens `n`: an int or an integer scalar tensor.
        seed: an int of at most 32 bits, or an integer scalar tensor.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. The order
            is then drawn over the rank among the real tokens of each example,
            and padding takes the last slots.
        num_key_value_heads: optional int `K`: one independent permutation per
            key/value head instead of one for all.

    Returns:
        int32 tensor `[n]`; `[B, n]` with a padding mask; with
        `num_key_value_heads`, `[1, K, n]` or `[B, K, n]`.

    Raises:
        ValueError: if `length` is negative, if `seed` does not fit in 32 bits
            or is not an integer, or if `padding_mask` is not `[B, length]`.

    Example:

    >>> import keras
    >>> order = keras_sa.ops.sample_permutation(6, seed=7)
    >>> sorted(keras.ops.convert_to_numpy(order).tolist())
    [0, 1, 2, 3, 4, 5]

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    if isinstance(length, int) and length < 0:
        raise ValueError(
            "`length` is expected not to be negative. "
            f"Received: length={length}"
        )
    seed = seed_to_int32(seed)
    if padding_mask is not None:
        static = length if isinstance(length, int) else None
        padding_mask = _validation.check_padding_mask(
            padding_mask, None, static
        )
    if num_key_value_heads is not None:
        _validation.check_positive_int(
            "num_key_value_heads", num_key_value_heads
        )
        seed = ops.reshape(split_seed(seed, num_key_value_heads), (1, -1, 1))
    ranks = (
        ops.arange(length, dtype="int32")
        if padding_mask is None
        else valid_ranks(padding_mask)
    )
    if num_key_value_heads is not None and padding_mask is not None:
        ranks, padding_mask = ranks[:, None, :], padding_mask[:, None, :]
    sort_keys = hash32(seed, ranks)
    if padding_mask is not None:
        # One hash in 2**32 is capped; the stable sort breaks such a tie.
        sort_keys = ops.where(
            padding_mask, ops.minimum(sort_keys, _LARGEST - 1), _LARGEST
        )
    return order_by(sort_keys)


def order_by(sort_keys):
    """The token in each slot when tokens are sorted by their keys."""
    return ops.cast(ops.argsort(sort_keys, axis=-1), "int32")


def invert_permutation(permutation):
    """Inverts permutations along their last axis.

    Args:
        permutation: int32 tensor `[..., n]`.

    Returns:
        int32 tensor of the same shape: the slot of every token.

    Example:

    >>> import keras
    >>> inverse = keras_sa.ops.invert_permutation([2, 0, 1])
    >>> keras.ops.convert_to_numpy(inverse).tolist()
    [1, 2, 0]
    """
    permutation = ops.convert_to_tensor(permutation, "int32")
    shape = ops.shape(permutation)
    rows = ops.reshape(permutation, (-1, shape[-1]))
    num_rows = ops.shape(rows)[0]
    token = rows + _starts(num_rows, shape[-1])  # in a flat `[rows * n]`
    slot = ops.broadcast_to(
        ops.arange(shape[-1], dtype="int32"), ops.shape(token)
    )
    # Sorting takes two to a hundred times as long.
    inverse = ops.scatter_update(
        ops.zeros((num_rows * shape[-1],), dtype="int32"),
        ops.reshape(token, (-1, 1)),
        ops.reshape(slot, (-1,)),
    )
    return ops.reshape(inverse, shape)


def padding_last(permutation, padding_mask):
    """Moves padding to the last slots, keeping the order otherwise.

    Args:
        permutation: int32 tensor `[n]`, `[B or 1, n]` or `[B or 1, K, n]`.
        padding_mask: boolean tensor `[B, n]`.

    Returns:
        int32 tensor `[B, n]` or `[B, K, n]`.
    """
    batch_size, length = ops.shape(padding_mask)
    if len(permutation.shape) == 3:
        padding_mask = padding_mask[:, None, :]
        shape = (batch_size, permutation.shape[1], length)
    else:
        shape = (batch_size, length)
    slot = ops.broadcast_to(invert_permutation(permutation), shape)
    return order_by(ops.where(padding_mask, slot, slot + as_int32(length)))


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
    keys = pad_end(keys, num_blocks * block_size - length, _LARGEST, axis=-1)
    keys = ops.sort(ops.reshape(keys, (*lead, num_blocks, block_size)), axis=-1)
    keys = ops.reshape(keys, (*lead, num_blocks * block_size))
    position = keys % length
    is_nobody = ops.cast(keys >= 2 * length, "int32")
    # No `where`: it would have `torch.compile` compile for every length.
    position = position + is_nobody * (length - position)
    return ops.cast(position, "int32")


def as_int32(size):
    """A size to compute with; an int as it is, which `torch.compile` may take
    for an unknown one."""
    return size if isinstance(size, int) else ops.cast(size, "int32")


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
        index = index + _starts(batch_size, num_slots * num_heads)[..., None]
        return take_rows(x, index)
    if len(index.shape) == 1:
        index = index[None]
    # All heads of a token are one row.
    x = ops.reshape(x, (batch_size, num_slots, num_heads * features))
    x = take_rows(x, index + _starts(batch_size, num_slots))
    return ops.reshape(x, (batch_size, -1, num_heads, features))


def _starts(num_parts, stride):
    """Where each part starts in a flat table of rows `[parts, 1]`."""
    start = ops.arange(num_parts, dtype="int32") * as_int32(stride)
    return start[:, None]


def take_rows(x, index, back=None):
    """Rows of features by their place in the flat table `[..., F]`.

    Args:
        index: int32 of any shape.
        back: optional int32, for every row of the table the one place in
            `index` that names it. The gradient gathers, too: torch and
            TensorFlow need several times as long to scatter.
    """
    features = ops.shape(x)[-1]
    backend = keras.config.backend()
    if back is not None and backend == "torch":
        from keras_sa.ops import torch_gathers as gathers
    elif back is not None and backend == "tensorflow":
        from keras_sa.ops import tensorflow_gathers as gathers
    else:
        # The middle axis keeps Keras on torch from an embedding lookup, which
        # is ten times slower than selecting rows.
        rows = ops.take(ops.reshape(x, (-1, 1, features)), index, axis=0)
        return ops.reshape(rows, (*ops.shape(index), features))
    rows = gathers.take_rows(
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
        _starts(batch_size, batch_stride),
        _starts(num_heads, head_stride),
    )
    return batch[:, None] + head[None]
