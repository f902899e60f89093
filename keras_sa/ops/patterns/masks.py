"""Who sees whom as a boolean mask, in O(n^2).

Letters: `B` batch, `n` tokens, `H` query heads, `w` window.
"""

from keras import ops

from keras_sa.patterns import permutation as permutations


def window_reach(window_size, causal):
    """How many positions a sliding window reaches `(left, right)`.

    Args:
        window_size: tokens in the window, the token itself included.
        causal: whether the window looks back only.

    Returns:
        `(w - 1, 0)` if causal, else `(w // 2, (w - 1) // 2)`.
    """
    if causal:
        return window_size - 1, 0
    return window_size // 2, (window_size - 1) // 2


def within_reach(distance, reach):
    """Whether a key `distance` positions back is within `(left, right)`."""
    left, right = reach
    return ops.logical_and(distance <= left, distance >= -right)


def look_up(mask, example, row, column):
    """Entries of a mask for some pairs of positions; no other is read.

    Args:
        mask: `[B or 1, n, n]`.
        example: int32 index of the batch; broadcasts with the positions.
        row: int32 positions of queries.
        column: int32 positions of keys.
    """
    batch_size, length = ops.shape(mask)[:2]
    example = ops.minimum(example, batch_size - 1)  # one mask for all
    index = (example * length + row) * length + column
    return ops.take(ops.reshape(mask, (-1,)), index, axis=0)


def sliding_window_mask(length, window_size, causal=False):
    """Boolean `[n, n]`: row i may look at column j."""
    position = ops.arange(length, dtype="int32")
    distance = position[:, None] - position[None, :]
    return within_reach(distance, window_reach(window_size, causal))


def stochastic_mask(
    permutation,
    window_size,
    neighborhood="window",
    causal=False,
    exclude_local=None,
):
    """Boolean `[..., n, n]` of stochastic attention, in original positions.

    Args:
        permutation: int32 `[..., n]`, padding last.
        window_size: `w`.
        neighborhood: `"window"` or `"block"`.
        causal: whether j must not come after i in the original order.
        exclude_local: optional int: hide what a sliding window of this size
            shows.
    """
    slot = permutations.invert_permutation(permutation)
    row, column = slot[..., :, None], slot[..., None, :]
    if neighborhood == "block":
        mask = row // window_size == column // window_size
    else:
        mask = within_reach(
            row - column, window_reach(window_size, causal=False)
        )
    length = ops.shape(permutation)[-1]
    if causal:
        position = ops.arange(length, dtype="int32")
        mask = ops.logical_and(mask, position[None, :] <= position[:, None])
    if exclude_local is not None:
        local = sliding_window_mask(length, exclude_local, causal)
        mask = ops.logical_and(mask, ops.logical_not(local))
    return mask


def padding_pairs_mask(padding_mask):
    """Boolean `[B, n, n]`: both the row and the column are real tokens."""
    return ops.logical_and(padding_mask[:, :, None], padding_mask[:, None, :])


def block_routed_mask(routes, block_size, padding_mask=None, causal=False):
    """Boolean `[B, H, n, n]` of block-routed attention.

    Args:
        routes: boolean `[B, n, H, blocks]`: the blocks each query looks at,
            its own included.
        block_size: tokens in a block, counted over the real tokens.
        padding_mask: optional boolean `[B, n]`.
        causal: whether j must not come after i.
    """
    batch_size, length, num_heads, num_blocks = ops.shape(routes)
    position = ops.arange(length, dtype="int32")
    rank = (
        ops.broadcast_to(position, (batch_size, length))
        if padding_mask is None
        else permutations.valid_ranks(padding_mask)
    )
    block = ops.one_hot(rank // block_size, num_blocks)  # [B, n, blocks]
    mask = (
        ops.einsum("bihc,bjc->bhij", ops.cast(routes, block.dtype), block) > 0
    )
    if causal:
        mask = ops.logical_and(mask, position[None, :] <= position[:, None])
    if padding_mask is not None:
        pairs = padding_pairs_mask(padding_mask)
        mask = ops.logical_and(mask, pairs[:, None])
    return mask
