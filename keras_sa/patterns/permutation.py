"""Random orders of tokens, the same bit for bit on every backend.

`permutation[p]` is the original position of the token in slot `p`, and
`inverse[permutation[p]] == p`.

Letters: `B` batch, `n` tokens, `K` key/value heads.
"""

import keras
import numpy as np
from keras import ops

from keras_sa import _validation

# The multipliers and shifts of the 32-bit mixer "triple32" by C. Wellons
# (https://nullprogram.com/blog/2018/07/31/), which is a bijection.
_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
_LAST_SHIFT = 14
# Independent streams of one seed: the fractional digits of sqrt(2), sqrt(3),
# sqrt(5) and sqrt(7) as 32-bit words.
_STREAM_BEFORE, _STREAM_AFTER, _STREAM_SPLIT = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
)
_STREAM_FOLD = 0xA54FF53A
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


def fold_seed(seed, k):
    """Returns a seed of its own for the k-th random part of a pattern.

    Args:
        seed: an int of at most 32 bits, or an integer scalar tensor.
        k: int; the part number 0 has the seed itself.
    """
    if k == 0:
        return seed
    stream = _stream(seed_to_int32(seed), _STREAM_FOLD)
    return hash32(stream, ops.convert_to_tensor(k, "int32"))


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
    if 0 in permutation.shape:
        return permutation
    shape = ops.shape(permutation)
    rows = ops.reshape(permutation, (-1, shape[-1]))
    num_rows = ops.shape(rows)[0]
    token = rows + starts(num_rows, shape[-1])  # in a flat `[rows * n]`
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


def as_int32(size):
    """A size to compute with; an int as it is, which `torch.compile` may take
    for an unknown one."""
    return size if isinstance(size, int) else ops.cast(size, "int32")


def starts(num_parts, stride):
    """Where each part starts in a flat table of rows `[parts, 1]`."""
    start = ops.arange(num_parts, dtype="int32") * as_int32(stride)
    return start[:, None]
