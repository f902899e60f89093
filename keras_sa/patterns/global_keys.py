"""Keys that every token attends to."""

import dataclasses

from keras import ops

from keras_sa import _validation
from keras_sa.patterns import lists
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns.pattern import Pattern


@dataclasses.dataclass(frozen=True, repr=False)
class GlobalKeys(Pattern):
    """Every token attends to the first tokens.

    Pretrained models need them: they put on the first tokens the weight that
    they have no other use for ("attention sinks"), and fail without.

    Args:
        first: how many of the first real tokens; padding does not count.

    Example:

    >>> from keras_sa.patterns import GlobalKeys
    >>> from keras_sa.patterns import SlidingWindow
    >>> pattern = SlidingWindow(4) | GlobalKeys(first=2)
    >>> pattern.keys_per_token(100, is_causal=True)
    5.85

    Reference:
        StreamingLLM, https://arxiv.org/abs/2309.17453
    """

    first: int

    def __post_init__(self):
        first = _validation.check_positive_int("first", self.first)
        self._set("first", first)

    def mask(self, length, *, is_causal=False, padding_mask=None, **use):
        position = ops.arange(length, dtype="int32")
        rank = position
        if padding_mask is not None:
            rank = permutations.valid_ranks(padding_mask)  # [B, n]
        mask = rank[..., None, :] < self.first
        mask = ops.broadcast_to(mask, (*ops.shape(mask)[:-2], length, length))
        if is_causal:
            mask = ops.logical_and(mask, lists.causal(length))
        return lists.with_padding(mask, padding_mask)

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        first = ops.arange(self.first, dtype="int32")[None, :]
        visible = ops.logical_and(first < length, positions[:, None] >= 0)
        if is_causal:
            visible = ops.logical_and(visible, first <= positions[:, None])
        return ops.where(visible, first, -1)

    def contains(self, other):
        return (
            type(self) is type(other) is GlobalKeys
            and other.first <= self.first
        )

    def __repr__(self):
        return f"GlobalKeys(first={self.first})"
