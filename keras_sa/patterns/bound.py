"""A pattern together with what only its use knows.

Letters: `n` tokens, `K` key/value heads, `H` query heads, `T` tokens that
attend, `m` places in a list of neighbors.
"""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa.patterns import lists
from keras_sa.patterns.combined import Combination
from keras_sa.patterns.pattern import Pattern
from keras_sa.patterns.pattern import check_pattern


@dataclasses.dataclass(frozen=True, eq=False)
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
    routes: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        check_pattern(self.pattern)
        if isinstance(self.seed, (int, float)):  # not what was drawn
            _validation.check_seed(self.seed)
        heads = self.num_key_value_heads
        if heads is not None:
            _validation.check_positive_int("num_key_value_heads", heads)
        if self.routes is None or isinstance(self.routes, tuple):
            return
        routes = ops.convert_to_tensor(self.routes, "int32")
        if len(routes.shape) != 3:
            raise ValueError(
                "`routes` is expected to be `[n, heads, blocks per token]`. "
                f"Received: shape {tuple(routes.shape)}"
            )
        object.__setattr__(self, "routes", routes)

    def __eq__(self, other):
        # What was chosen is a tensor: no other one is the same.
        return (
            isinstance(other, BoundPattern)
            and self._key() == other._key()
            and self.routes is other.routes
        )

    def __hash__(self):
        return hash(self._key())

    def _key(self):
        return (
            self.pattern,
            bool(self.is_causal),
            self.seed,
            self.num_key_value_heads,
        )

    def neighbors(self, length, positions=None):
        """int32 `[T, m]`: positions, -1 for nobody. A key that several heads
        attend to stands there several times.

        Args:
            length: `n`.
            positions: int32 `[T]`: the tokens that attend. Default: all `n`.
        """
        more = {}
        if "routes" in self.pattern.needs():
            more["routes"] = self._routes(length)
        neighbors = lists.neighbors_of(
            self.pattern,
            length,
            is_causal=self.is_causal,
            seed=self.draw(length).seed,
            positions=positions,
            **more,
        )
        if len(neighbors.shape) == 2:
            return neighbors
        heads, _, width = neighbors.shape
        neighbors = ops.transpose(neighbors, (1, 0, 2))
        return ops.reshape(neighbors, (-1, heads * width))

    def draw(self, length):
        """The same with its permutations of `length` tokens drawn, so that
        `neighbors` draws them no more."""
        drawn = self.pattern.draw(
            length,
            seed=self.seed,
            num_key_value_heads=self.num_key_value_heads,
        )
        return dataclasses.replace(self, seed=drawn)

    def leaves(self):
        """The patterns that are not combined, each with its own seed."""
        if not isinstance(self.pattern, Combination):
            return [self]
        pairs = zip(self.pattern.members, self.pattern.seeds(self.seed))
        members = [
            dataclasses.replace(self, pattern=pattern, seed=seed)
            for pattern, seed in pairs
        ]
        return [leaf for member in members for leaf in member.leaves()]

    def split(self, length):
        """The tokens that attend to all, and what the others attend to.

        What is O(n^2) in lists, such as full attention, need not be listed.

        Args:
            length: `n`.

        Returns:
            `(dense, rest)`: boolean numpy array `[n]`, the tokens that attend
            to all tokens, or to all before; and the `BoundPattern` without
            the parts that say so, or `None` if there is no other part.
        """
        dense = np.zeros(length, bool)
        for leaf in self.pattern.leaves():
            rows = leaf.dense_rows(length)
            if rows is not None:
                dense[rows] = True
        rest = self.pattern.without_dense_rows(length)
        if rest is not None:
            rest = dataclasses.replace(self, pattern=rest)
        return dense, rest

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
