"""Tokens that attend to everybody."""

import dataclasses

from keras import ops

from keras_sa import _validation
from keras_sa.patterns import lists
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns.pattern import Pattern


@dataclasses.dataclass(frozen=True, repr=False)
class GlobalQueries(Pattern):
    """The last, or the first, tokens attend to all tokens.

    Such as a question at the end of a long text, or a summary token at its
    beginning. In a causal model they attend to no later token.

    Args:
        last: how many of the last real tokens; padding does not count.
        first: how many of the first real tokens. One of both is given.

    Example:

    >>> from keras_sa.patterns import GlobalQueries
    >>> from keras_sa.patterns import SlidingWindow
    >>> pattern = SlidingWindow(4) | GlobalQueries(last=10)
    >>> int(keras.ops.sum(pattern.mask(100)[-1]))
    100

    Reference:
        Longformer, https://arxiv.org/abs/2004.05150
    """

    last: int | None = None
    first: int | None = None

    def __post_init__(self):
        if (self.last is None) == (self.first is None):
            raise ValueError(
                "GlobalQueries expects one of `last` and `first`; for both "
                "write GlobalQueries(last=...) | GlobalQueries(first=...). "
                f"Received: last={self.last!r}, first={self.first!r}"
            )
        name = "first" if self.last is None else "last"
        value = _validation.check_positive_int(name, getattr(self, name))
        self._set(name, value)

    def rows(self, length):
        """How many rows there are, and the rank of the first of them."""
        count = self.last or self.first
        if isinstance(length, int):
            count = min(count, length)
        return count, (length - count if self.last else 0)

    def is_row(self, rank, num_real):
        """Whether a token of this rank among `num_real` tokens is a row."""
        if self.first is not None:
            return rank < self.first
        return rank >= num_real - self.last

    def mask(self, length, *, is_causal=False, padding_mask=None, **use):
        rank, num_real = ops.arange(length, dtype="int32"), length
        if padding_mask is not None:
            rank = permutations.valid_ranks(padding_mask)  # [B, n]
            num_real = ops.cast(padding_mask, "int32")
            num_real = ops.sum(num_real, axis=-1, keepdims=True)
        mask = self.is_row(rank, num_real)[..., :, None]
        mask = ops.broadcast_to(mask, (*ops.shape(mask)[:-2], length, length))
        if is_causal:
            mask = ops.logical_and(mask, lists.causal(length))
        return lists.with_padding(mask, padding_mask)

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        # The first tokens of a causal model have few to attend to.
        width = length
        if is_causal and self.first is not None:
            width = min(self.first, length)
        key = ops.arange(width, dtype="int32")[None, :]
        visible = self.is_row(positions, length)[:, None]
        if is_causal:
            visible = ops.logical_and(visible, key <= positions[:, None])
        return ops.where(visible, key, -1)

    def why_not_decode(self):
        if self.last is None:
            return None
        return (
            "the last tokens of GlobalQueries(last=...) are not known before "
            "the text ends. Take decode='full', where new tokens attend to "
            "everything anyway, or leave the GlobalQueries out"
        )

    def dense_rows(self, length):
        count, first = self.rows(length)
        return slice(first, first + count)

    def contains(self, other):
        return (
            type(self) is type(other) is GlobalQueries
            and (other.last or 0) <= (self.last or 0)
            and (other.first or 0) <= (self.first or 0)
        )
