"""The attention pattern of one layer as an object.

Each answers for itself: whom a token sees, as a mask or as a list. What
several heads or paths of a layer see counts together.

Letters: `n` tokens, `T` tokens that look, `m` places in a list, `H` query
heads, `K` key/value heads, `w` window.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_sa import _validation
from keras_sa.ops.patterns import masks
from keras_sa.ops.patterns import neighbors
from keras_sa.patterns import permutation as permutations

NEIGHBORHOODS = ("window", "block")
ORDERS = ("random", "identity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pattern:
    """Who sees whom in one layer; the base of all patterns.

    Args:
        causal: whether a token sees no later token.
    """

    causal: bool = False

    def mask(self, length):
        """Boolean `[n, n]`: row i sees column j. This takes O(n^2)."""
        raise NotImplementedError

    def neighbors(self, length, positions=None):
        """int32 `[T, m]`: whom each token sees, -1 where there is nobody.

        A token may stand in a row several times.

        Args:
            length: `n`.
            positions: int32 `[T]`: the tokens that look. Default: all `n`.
        """
        raise NotImplementedError

    def most_neighbors(self, length):
        """`m`: places in a row of `neighbors`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Full(Pattern):
    """Full attention: everybody, or everybody before.

    Example:

    >>> from keras_sa.ops import patterns
    >>> int(keras.ops.sum(patterns.Full(causal=True).mask(4)))
    10
    """

    def mask(self, length):
        return masks.sliding_window_mask(length, 2 * length, self.causal)

    def neighbors(self, length, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        everybody = ops.arange(length, dtype="int32")[None, :]
        if self.causal:
            return ops.where(everybody <= positions[:, None], everybody, -1)
        return ops.broadcast_to(everybody, (ops.shape(positions)[0], length))

    def most_neighbors(self, length):
        return length


@dataclasses.dataclass(frozen=True)
class SlidingWindow(Pattern):
    """A window over the text.

    Args:
        window_size: `w`, the token itself included.
        causal: whether a token sees no later token.

    Example:

    >>> from keras_sa.ops import patterns
    >>> patterns.SlidingWindow(2, causal=True).neighbors(3).shape
    (3, 2)
    """

    window_size: int

    def __post_init__(self):
        _validation.check_positive_int("window_size", self.window_size)

    def mask(self, length):
        return masks.sliding_window_mask(length, self.window_size, self.causal)

    def neighbors(self, length, positions=None):
        return neighbors.sliding_window_neighbors(
            length, self.window_size, self.causal, positions
        )

    def most_neighbors(self, length):
        return self.window_size


@dataclasses.dataclass(frozen=True)
class Stochastic(Pattern):
    """A window over a random order.

    Args:
        window_size: `w`, the token's own slot included.
        seed: int of at most 32 bits, of the permutation.
        neighborhood: `"window"` or `"block"`.
        num_permutations: optional int `K`: one permutation for each of as many
            key/value heads, which is what `permute="head"` draws. A token then
            sees what any of its heads sees.
        order: `"random"`, or `"identity"`: tokens stay where they are.
        causal: whether a token sees no later token.

    Example:

    >>> from keras_sa.ops import patterns
    >>> patterns.Stochastic(16, seed=1).neighbors(100).shape
    (100, 16)
    """

    window_size: int
    seed: int = 0
    neighborhood: str = "window"
    num_permutations: int | None = None
    order: str = "random"

    def __post_init__(self):
        _validation.check_positive_int("window_size", self.window_size)
        _validation.check_seed(self.seed)
        _validation.check_one_of(
            "neighborhood", self.neighborhood, NEIGHBORHOODS
        )
        _validation.check_one_of("order", self.order, ORDERS)
        if self.num_permutations is not None:
            _validation.check_positive_int(
                "num_permutations", self.num_permutations
            )

    def permutations(self, length):
        """int32 `[1 or K, n]`."""
        if self.order == "identity":
            return ops.arange(length, dtype="int32")[None]
        permutation = permutations.sample_permutation(
            length, self.seed, num_key_value_heads=self.num_permutations
        )
        return ops.reshape(permutation, (-1, length))

    def mask(self, length):
        mask = masks.stochastic_mask(
            self.permutations(length),
            self.window_size,
            self.neighborhood,
            self.causal,
        )
        return ops.any(mask, axis=0)

    def neighbors(self, length, positions=None):
        lists = [
            neighbors.stochastic_neighbors(
                permutation,
                self.window_size,
                self.neighborhood,
                self.causal,
                positions=positions,
            )
            for permutation in ops.unstack(self.permutations(length))
        ]
        return ops.concatenate(lists, axis=1)

    def most_neighbors(self, length):
        return self.window_size * (self.num_permutations or 1)


@dataclasses.dataclass(frozen=True)
class SmallWorld(Stochastic):
    """A window over a random order and a window over the text.

    Args:
        window_size: `w` of the stochastic window.
        seed, neighborhood, num_permutations, order: as in `Stochastic`.
        local_window_size: of the sliding window. Default: `window_size`.
        causal: whether a token sees no later token.

    Example:

    >>> from keras_sa.ops import patterns
    >>> patterns.SmallWorld(16, seed=1, local_window_size=8).neighbors(99).shape
    (99, 24)
    """

    local_window_size: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.local_window_size is not None:
            _validation.check_positive_int(
                "local_window_size", self.local_window_size
            )

    @property
    def local(self):
        """The sliding window."""
        return SlidingWindow(
            self.local_window_size or self.window_size, causal=self.causal
        )

    def mask(self, length):
        return ops.logical_or(super().mask(length), self.local.mask(length))

    def neighbors(self, length, positions=None):
        return ops.concatenate(
            [
                super().neighbors(length, positions),
                self.local.neighbors(length, positions),
            ],
            axis=1,
        )

    def most_neighbors(self, length):
        return super().most_neighbors(length) + self.local.window_size


@dataclasses.dataclass(frozen=True, eq=False)
class BlockRouted(Pattern):
    """The blocks that each token chose, and its own (MoBA).

    Args:
        block_size: tokens in a block.
        blocks: int32 `[n, H, r]`: the blocks that each token reads, its own
            included; -1 where there is none. `keras_sa.ops.route_to_blocks`
            finds them from queries and keys.
        causal: whether a token sees no later token.

    Example:

    >>> from keras_sa.ops import patterns
    >>> query = key = keras.random.normal((1, 50, 2, 8), seed=0)
    >>> blocks = keras_sa.ops.route_to_blocks(
    ...     query, key, block_size=10, top_k=2, causal=True
    ... )
    >>> patterns.BlockRouted(10, blocks[0], causal=True).neighbors(50).shape
    (50, 40)
    """

    block_size: int
    blocks: Any

    # That of the base would not look at the blocks.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self):
        _validation.check_positive_int("block_size", self.block_size)
        blocks = ops.convert_to_tensor(self.blocks, "int32")
        if len(blocks.shape) != 3:
            raise ValueError(
                "`blocks` is expected to be `[n, heads, blocks per token]`. "
                f"Received: shape {tuple(blocks.shape)}"
            )
        object.__setattr__(self, "blocks", blocks)

    def _blocks(self, length):
        if self.blocks.shape[0] != length:
            raise ValueError(
                "`length` is expected to be that of the sequence whose tokens "
                f"chose: {self.blocks.shape[0]}. Received: length={length}"
            )
        return self.blocks

    def mask(self, length):
        num_blocks = (length + self.block_size - 1) // self.block_size
        routes = ops.one_hot(self._blocks(length), num_blocks)
        routes = ops.any(routes > 0, axis=2)[None]  # [1, n, H, blocks]
        mask = masks.block_routed_mask(
            routes, self.block_size, causal=self.causal
        )
        return ops.any(mask[0], axis=0)

    def neighbors(self, length, positions=None):
        return neighbors.block_routed_neighbors(
            self._blocks(length),
            self.block_size,
            length,
            self.causal,
            positions,
        )

    def most_neighbors(self, length):
        num_heads, num_blocks = ops.shape(self.blocks)[1:]
        return num_heads * num_blocks * self.block_size
