"""A window over the text, dense or dilated.

Letters: `n` tokens, `w` window, `d` dilation.
"""

import dataclasses

from keras import ops

from keras_sa import _validation
from keras_sa.patterns import counting
from keras_sa.patterns import lists
from keras_sa.patterns.pattern import Pattern


def window_reach(window_size, is_causal):
    """How many positions a window reaches `(left, right)`.

    Args:
        window_size: tokens in the window, the token itself included.
        is_causal: whether the window looks back only.

    Returns:
        `(w - 1, 0)` if causal, else `(w // 2, (w - 1) // 2)`.
    """
    if is_causal:
        return window_size - 1, 0
    return window_size // 2, (window_size - 1) // 2


def within_reach(distance, reach):
    """Whether a key `distance` positions back is within `(left, right)`."""
    left, right = reach
    return ops.logical_and(distance <= left, distance >= -right)


@dataclasses.dataclass(frozen=True, repr=False)
class SlidingWindow(Pattern):
    """A window over the text.

    A causal model attends to `i - w + 1 .. i`, a bidirectional one to
    `i - w // 2 .. i + (w - 1) // 2`, cut at the ends.

    Args:
        window_size: `w`, tokens in the window, the token itself included.
        dilation: `d`: the window takes every d-th token: `i, i - d, ...`,
            `w` of them.

    Example:

    >>> from keras_sa.patterns import SlidingWindow
    >>> pattern = SlidingWindow(3, dilation=2)
    >>> keras.ops.convert_to_numpy(pattern.neighbors(6, is_causal=True))[5]
    array([1, 3, 5], dtype=int32)

    Reference:
        Longformer, https://arxiv.org/abs/2004.05150;
        Mistral 7B, https://arxiv.org/abs/2310.06825
    """

    window_size: int
    dilation: int = 1

    def __post_init__(self):
        for name in ("window_size", "dilation"):
            value = getattr(self, name)
            self._set(name, _validation.check_positive_int(name, value))

    def mask(self, length, *, is_causal=False, padding_mask=None, **use):
        position = ops.arange(length, dtype="int32")
        distance = position[:, None] - position[None, :]
        left, right = window_reach(self.window_size, is_causal)
        d = self.dilation
        mask = within_reach(distance, (left * d, right * d))
        if d > 1:
            mask = ops.logical_and(mask, distance % d == 0)
        return lists.with_padding(mask, padding_mask)

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        left, right = window_reach(self.window_size, is_causal)
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        steps = ops.arange(-left, right + 1, dtype="int32") * self.dilation
        neighbor = positions[:, None] + steps
        inside = ops.logical_and(neighbor >= 0, neighbor < length)
        return ops.where(inside, neighbor, -1)

    def keys_per_token(self, length, *, is_causal=False):
        reach = window_reach(self.window_size, is_causal)
        return counting.window_pairs(length, reach, self.dilation) / max(
            length, 1
        )

    def reach(self, length, *, is_causal=False):
        if self.dilation > 1:
            return None
        return window_reach(self.window_size, is_causal)

    def contains(self, other):
        return (
            # A subclass may have other neighbors.
            type(self) is type(other) is SlidingWindow
            and other.dilation == self.dilation
            and other.window_size <= self.window_size
        )

    def symmetric(self):
        return dataclasses.replace(self, window_size=2 * self.window_size - 1)
