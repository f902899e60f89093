"""Full attention."""

import dataclasses

from keras import ops

from keras_sa.patterns import lists
from keras_sa.patterns.pattern import Pattern


@dataclasses.dataclass(frozen=True, repr=False)
class Full(Pattern):
    """Everybody attends to everybody, or to everybody before.

    In a model, it leaves a layer as it is.

    Example:

    >>> from keras_sa.patterns import Full
    >>> Full().keys_per_token(5, is_causal=True)
    3.0
    """

    def mask(self, length, *, is_causal=False, padding_mask=None, **use):
        mask = (
            lists.causal(length)
            if is_causal
            else ops.ones((length, length), dtype="bool")
        )
        return lists.with_padding(mask, padding_mask)

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        everybody = ops.arange(length, dtype="int32")[None, :]
        if is_causal:
            return ops.where(everybody <= positions[:, None], everybody, -1)
        return ops.broadcast_to(everybody, (ops.shape(positions)[0], length))

    def reach(self, length, *, is_causal=False):
        return length, 0 if is_causal else length

    def dense_rows(self, length):
        return slice(0, length)

    def contains(self, other):
        return True
