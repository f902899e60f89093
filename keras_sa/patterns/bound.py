"""A pattern together with what only its use knows.

Letters: `n` tokens, `K` key/value heads, `H` query heads, `T` tokens that
attend, `m` places in a list of neighbors.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_sa.patterns import lists
from keras_sa.patterns.pattern import Pattern


@dataclasses.dataclass(frozen=True)
class BoundPattern:
    """What one layer attends to, all its heads and paths together.

    This is what `keras_sa.analysis` measures. `pattern.bind(...)` makes one.

    Args:
        pattern: a `Pattern`.
        is_causal: whether a token attends to no later token.
        seed: int of at most 32 bits, of the permutations.
        num_key_value_heads: `K`, where heads differ.
        routes: int32 `[n, H, r]`, the blocks that tokens chose, where the
            pattern leaves that to them; what its `find_routes` returned.

    Example:

    >>> from keras_sa.patterns import Stochastic
    >>> bound = Stochastic(16).bind(is_causal=True, seed=3)
    >>> bound.neighbors(100).shape
    (100, 16)
    """

    pattern: Pattern
    is_causal: bool = False
    seed: int = 0
    num_key_value_heads: int | None = None
    routes: Any = dataclasses.field(default=None, compare=False, repr=False)

    def neighbors(self, length, positions=None):
        """int32 `[T, m]`: positions, -1 for nobody. A key that several heads
        attend to stands there several times.

        Args:
            length: `n`.
            positions: int32 `[T]`: the tokens that attend. Default: all `n`.
        """
        more = {}
        if self.routes is not None:
            more["routes"] = self._routes(length)
        neighbors = lists.neighbors_of(
            self.pattern,
            length,
            is_causal=self.is_causal,
            seed=self.pattern.draw(
                length,
                seed=self.seed,
                num_key_value_heads=self.num_key_value_heads,
            ),
            positions=positions,
            **more,
        )
        if len(neighbors.shape) == 2:
            return neighbors
        heads, _, width = neighbors.shape
        neighbors = ops.transpose(neighbors, (1, 0, 2))
        return ops.reshape(neighbors, (-1, heads * width))

    def mask(self, length):
        """Boolean `[n, n]`: row i attends to column j, in O(n^2)."""
        return lists.mask_of_neighbors(self.neighbors(length), length)

    def most_neighbors(self, length):
        """`m`: places in a row of `neighbors`."""
        if length == 0:
            return 0
        first = ops.zeros((1,), dtype="int32")
        return self.neighbors(length, first).shape[1]

    def keys_per_token(self, length):
        """The mean number of keys that a token attends to with one head."""
        return self.pattern.keys_per_token(length, is_causal=self.is_causal)

    def _routes(self, length):
        of_members = isinstance(self.routes, tuple)
        known = self.routes if of_members else (self.routes,)
        for routes in known:
            if routes is not None and routes.shape[0] != length:
                raise ValueError(
                    "`length` is expected to be that of the sequence whose "
                    f"tokens chose: {routes.shape[0]}. "
                    f"Received: length={length}"
                )
        return self.routes
