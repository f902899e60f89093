"""Blocks that each query chooses (MoBA).

Letters: `B` batch, `n` tokens, `H` query heads, `T` tokens that attend, `r`
blocks that a token reads, `b` tokens in a block, `c` blocks.
"""

import dataclasses

from keras import ops

from keras_sa import _validation
from keras_sa.patterns import lists
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns.pattern import Pattern


@dataclasses.dataclass(frozen=True, repr=False)
class BlockRouted(Pattern):
    """A token reads its own block and those that its query chooses.

    Which ones depends on queries and keys: whoever asks for a mask or for
    neighbors says it with `routes`, as `keras_sa.ops.route_to_blocks` finds
    them.

    Args:
        block_size: tokens in a block, counted over the real tokens.
        top_k: blocks that a token reads, its own included.

    Example:

    >>> from keras_sa.patterns import BlockRouted
    >>> query = key = keras.random.normal((1, 50, 2, 8), seed=0)
    >>> routes = keras_sa.ops.route_to_blocks(
    ...     query, key, block_size=10, top_k=2, is_causal=True
    ... )
    >>> BlockRouted(10, 2).mask(50, is_causal=True, routes=routes).shape
    (1, 2, 50, 50)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """

    block_size: int
    top_k: int

    def __post_init__(self):
        for name in ("block_size", "top_k"):
            value = getattr(self, name)
            self._set(name, _validation.check_positive_int(name, value))

    def mask(
        self, length, *, is_causal=False, padding_mask=None, routes=None, **use
    ):
        """Boolean `[B, H, n, n]`, of `routes` int32 `[B, n, H, r]`."""
        routes = self._checked(routes, 4)
        rank = ops.arange(length, dtype="int32")
        if padding_mask is not None:
            rank = permutations.valid_ranks(padding_mask)  # [B, n]
        block = (rank // self.block_size)[..., None, None, :]
        routes = ops.transpose(routes, (0, 2, 1, 3))  # [B, H, n, r]
        mask = ops.any(routes[..., :, None] == block[..., None, :], axis=-2)
        if is_causal:
            mask = ops.logical_and(mask, lists.causal(length))
        return lists.with_padding(mask, padding_mask)

    def neighbors(
        self,
        length,
        *,
        is_causal=False,
        seed=0,
        positions=None,
        routes=None,
    ):
        """int32 `[H, T, r * b]`, of `routes` int32 `[n, H, r]`."""
        routes = self._checked(routes, 3)
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        block = ops.take(routes, positions, axis=0)[..., None]  # [T, H, r, 1]
        neighbor = block * self.block_size
        neighbor = neighbor + ops.arange(self.block_size, dtype="int32")
        visible = ops.logical_and(block >= 0, neighbor < length)
        if is_causal:
            visible = ops.logical_and(
                visible, neighbor <= positions[:, None, None, None]
            )
        neighbor = ops.where(visible, neighbor, -1)
        width = routes.shape[2] * self.block_size
        neighbor = ops.reshape(neighbor, (-1, routes.shape[1], width))
        return ops.transpose(neighbor, (1, 0, 2))

    def _checked(self, routes, rank):
        if routes is not None and len(routes.shape) == rank:
            return ops.convert_to_tensor(routes, "int32")
        shape = "[B, n, H, r]" if rank == 4 else "[n, H, r]"
        received = "None" if routes is None else f"shape {tuple(routes.shape)}"
        raise ValueError(
            f"{self!r} lets queries choose what they attend to. `routes` is "
            f"expected to be int32 {shape}, as from "
            f"`keras_sa.ops.route_to_blocks`. Received: routes={received}"
        )

    def keys_per_token(self, length, *, is_causal=False):
        """The mean number of keys; without causality the most there can be."""
        if not is_causal:
            return float(min(length, self.top_k * self.block_size))
        total = 0
        for start in range(0, length, self.block_size):
            own = min(self.block_size, length - start)
            past_blocks = min(self.top_k - 1, start // self.block_size)
            total += own * (own + 1) / 2 + own * past_blocks * self.block_size
        return total / max(length, 1)

    def symmetric(self):
        raise ValueError(
            "BlockRouted expects no mask beside padding: its blocks are chosen "
            "before any mask, and a later block might be. Take another "
            "pattern, such as SlidingWindow(window_size). "
            f"Received: {self!r} and a mask that makes it causal"
        )

    def find_routes(self, find):
        return find(self.block_size, self.top_k)

    def why_not_decode(self):
        return (
            "BlockRouted chooses blocks for whole sequences. Take "
            "decode='full', where new tokens attend to the whole cache"
        )

    def needs(self):
        return frozenset(("routes",))
