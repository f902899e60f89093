"""Who sees whom as a list of neighbours for each token, in O(n w).

Letters: `n` tokens, `T` tokens that look, `w` window.
"""

from keras import ops

from keras_sa.ops.patterns.masks import window_reach
from keras_sa.ops.patterns.masks import within_reach
from keras_sa.patterns import permutation as permutations


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


def block_routed_neighbors(
    blocks, block_size, length, causal=False, positions=None
):
    """int32 `[T, H * r * block_size]`: whom each token sees; -1 where nobody.

    A token that several heads see stands there several times.

    Args:
        blocks: int32 `[n, H, r]`: the blocks that each token reads, its own
            included; -1 where there is none.
        block_size: tokens in a block.
        length: `n`.
        causal: whether a token sees no later token.
        positions: int32 `[T]`: the tokens that look. Default: all `n`.
    """
    if positions is None:
        positions = ops.arange(length, dtype="int32")
    block = ops.take(blocks, positions, axis=0)[..., None]  # [T, H, r, 1]
    neighbor = block * block_size + ops.arange(block_size, dtype="int32")
    visible = ops.logical_and(block >= 0, neighbor < length)
    if causal:
        position = positions[:, None, None, None]
        visible = ops.logical_and(visible, neighbor <= position)
    neighbor = ops.where(visible, neighbor, -1)
    width = blocks.shape[1] * blocks.shape[2] * block_size
    return ops.reshape(neighbor, (-1, width))
