"""Who sees whom: the boolean mask and the neighbour list of each pattern.

This is the written meaning of every attention of the package. The oracle, the
attention scores of the layers and the analysis of the attention graph all read
it; the fast implementations are tested against it. Masks are O(n^2) and say
so; neighbour lists are O(n w).

Letters: `n` tokens, `w` window, `B` batch, `K` key/value heads.
"""

from keras import ops

from keras_sa.ops import permutation as permutations


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


def sliding_window_neighbors(length, window_size, causal=False, positions=None):
    """int32 `[T, w]`: the positions each token sees; -1 where there is none.

    Args:
        length: `n`.
        window_size: `w`.
        causal: whether the window looks back only.
        positions: int32 `[T]`: the tokens that look. Default: all `n`.
    """
    left, right = window_reach(window_size, causal)
    if positions is None:
        positions = ops.arange(length, dtype="int32")
    neighbor = positions[:, None] + ops.arange(-left, right + 1, dtype="int32")
    inside = ops.logical_and(neighbor >= 0, neighbor < length)
    return ops.where(inside, neighbor, -1)


def stochastic_neighbors(
    permutation,
    window_size,
    neighborhood="window",
    causal=False,
    exclude_local=None,
    positions=None,
    slot_of=None,
):
    """int32 `[T, w]`: the positions each token sees; -1 where there is none.

    Args: as in `stochastic_mask`, with one permutation `[n]`, and
        positions: int32 `[T]`: the tokens that look. Default: all `n`.
        slot_of: the inverse of the permutation, if it is at hand.
    """
    length = ops.shape(permutation)[-1]
    if slot_of is None:
        slot_of = permutations.invert_permutation(permutation)
    if positions is None:
        positions = ops.arange(length, dtype="int32")
    slot = ops.take(slot_of, positions, axis=0)[:, None]
    if neighborhood == "block":
        first = slot // window_size * window_size
    else:
        first = slot - window_size // 2
    neighbor_slot = first + ops.arange(window_size, dtype="int32")
    visible = ops.logical_and(neighbor_slot >= 0, neighbor_slot < length)
    neighbor = ops.take(
        permutation, ops.clip(neighbor_slot, 0, length - 1), axis=0
    )
    positions = positions[:, None]
    if causal:
        visible = ops.logical_and(visible, neighbor <= positions)
    if exclude_local is not None:
        local = within_reach(
            positions - neighbor, window_reach(exclude_local, causal)
        )
        visible = ops.logical_and(visible, ops.logical_not(local))
    return ops.where(visible, neighbor, -1)


def visible_keys_per_token(
    length,
    window_size,
    pattern="sliding_window",
    neighborhood="window",
    causal=False,
    top_k=1,
):
    """The mean number of keys a token sees: the budget to compare at.

    Exact for the sliding window. For stochastic attention the mean over
    permutations: a pair of tokens that share a window is seen from both ends,
    or under a causal mask from the later end only. For block-routed attention
    exact under a causal mask, else the most there can be.

    Args:
        length: `n`.
        window_size: `w`, or the tokens in a block for `"block_routed"`.
        pattern: `"full"`, `"sliding_window"`, `"stochastic"` or
            `"block_routed"`.
        neighborhood: `"window"` or `"block"`, for `"stochastic"`.
        causal: whether tokens look back only.
        top_k: blocks that a token reads, for `"block_routed"`.

    Returns:
        A float between 1 and `n`.

    Example:

    >>> from keras_sa.ops import patterns
    >>> patterns.visible_keys_per_token(4096, 129, "stochastic", causal=True)
    64.4921875
    """
    if pattern == "full":
        return (length + 1) / 2 if causal else float(length)
    if pattern == "block_routed":
        return _routed_keys(length, window_size, top_k, causal)
    if pattern == "stochastic" and neighborhood == "block":
        full, rest = divmod(length, window_size)
        others = full * window_size * (window_size - 1) + rest * (rest - 1)
    else:
        left, right = window_reach(
            window_size, causal and pattern == "sliding_window"
        )
        others = _pairs(length, left) + _pairs(length, right)
    if causal and pattern == "stochastic":
        others = others / 2
    return others / length + 1


def union_size(length, stochastic, local, causal=False):
    """Mean visible keys of a stochastic and a sliding window together.

    Args:
        length: `n`.
        stochastic: mean visible keys of the stochastic window alone.
        local: mean visible keys of the sliding window alone.
        causal: whether tokens look back only.
    """
    everything = visible_keys_per_token(length, length, "full", causal=causal)
    if everything == 1:
        return 1.0
    share = (stochastic - 1) / (everything - 1)  # of all pairs, at random
    return local + share * (everything - local)


def _routed_keys(length, block_size, top_k, causal):
    if not causal:
        return float(min(length, top_k * block_size))
    total = 0
    for start in range(0, length, block_size):
        own = min(block_size, length - start)
        past_blocks = min(top_k - 1, start // block_size)
        total += own * (own + 1) / 2 + own * past_blocks * block_size
    return total / length


def _pairs(length, reach):
    """Ordered pairs of positions at distance 1 .. reach, one direction."""
    reach = min(reach, length - 1)
    return reach * length - reach * (reach + 1) // 2
