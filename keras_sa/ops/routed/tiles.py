"""Pairs of a query and a block, packed by block.

Letters: as in `api.py`.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_sa.patterns import permutation as permutations

_TILE = 64


@dataclasses.dataclass(frozen=True)
class Tiles:
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
        first = ops.take(start, tile_block, axis=0) + _TILE * (
            tile - ops.cast(ops.take(tile_start, tile_block, axis=0), "int32")
        )
        rank = first[:, None] + ops.arange(_TILE, dtype="int32")
        is_pair = rank < ops.take(start, tile_block + 1, axis=0)[:, None]
        pair = ops.take(order, ops.minimum(rank, num_pairs - 1), axis=0)
        known = ops.minimum(block, total - 1)
        place = permutations.invert_permutation(order) - ops.take(
            start, known, axis=0
        )
        place = place + _TILE * ops.cast(
            ops.take(tile_start, known, axis=0), "int32"
        )
        is_choice = ops.reshape(is_choice, (-1,))
        place = ops.where(is_choice, place, 0)
        return cls(tile_block, pair, is_pair, place, is_choice, num_routed)

    def dropout(self, rate, seed, block_size):
        """Dropout that goes with the pair, wherever it is packed: the packing
        depends on what later tokens choose."""
        ones = ops.ones((ops.shape(self.place)[0], block_size))
        factors = keras.random.dropout(ones, rate, seed=seed)  # [M, b]

        def drop(weights):
            return weights * ops.cast(
                ops.take(factors, self.pair, axis=0), weights.dtype
            )

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
