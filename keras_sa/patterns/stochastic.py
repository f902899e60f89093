"""A window over a random permutation of the tokens.

Letters: `B` batch, `n` tokens, `K` key/value heads, `T` tokens that attend,
`w` window.
"""

import dataclasses
from typing import Any
from typing import ClassVar

from keras import ops

from keras_sa import _validation
from keras_sa.patterns import counting
from keras_sa.patterns import lists
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns.pattern import Pattern
from keras_sa.patterns.sliding_window import window_reach
from keras_sa.patterns.sliding_window import within_reach

NEIGHBORHOODS = ("window", "block")
PERMUTATION_PER = ("layer", "head")


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnPermutation:
    """A permutation and its inverse.

    Attributes:
        permutation: int32 `[n]`, `[B, n]`, `[K, n]` or `[B, K, n]`: the token
            in each slot, padding last.
        slot_of: int32 in the same shape: the slot of each token.
        per_head: whether there is an axis `K`.
    """

    permutation: Any
    slot_of: Any
    per_head: bool


@dataclasses.dataclass(frozen=True, repr=False)
class Stochastic(Pattern):
    """A window over a random permutation: a random sample of the sequence.

    Args:
        window_size: `w`, slots in the window, the token's own included. A
            causal model attends to `(w + 1) / 2` keys in the mean.
        neighborhood: `"window"`: the slots `p - w // 2 .. p + (w - 1) // 2`;
            `"block"`: slots are cut in disjoint blocks of `w`.
        permutation_per: `"layer"`: one permutation for all heads; `"head"`: an
            independent one for each key/value head, which reaches more tokens
            at the same cost.

    Example:

    >>> from keras_sa.patterns import Stochastic
    >>> Stochastic(16).neighbors(100, seed=1).shape
    (100, 16)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """

    is_random: ClassVar[bool] = True

    window_size: int
    neighborhood: str = "window"
    permutation_per: str = "layer"

    def __post_init__(self):
        check = _validation.check_one_of
        self._set(
            "window_size",
            _validation.check_positive_int("window_size", self.window_size),
        )
        check("neighborhood", self.neighborhood, NEIGHBORHOODS)
        check("permutation_per", self.permutation_per, PERMUTATION_PER)

    def draw(
        self,
        length,
        *,
        seed=0,
        num_key_value_heads=None,
        padding_mask=None,
    ):
        """A `DrawnPermutation`: what `neighbors` takes in place of a seed."""
        if isinstance(seed, DrawnPermutation):
            return seed
        per_head = self.permutation_per == "head"
        if per_head and num_key_value_heads is None:
            raise ValueError(
                "permutation_per='head' expects `num_key_value_heads`: one "
                f"permutation for each. Received: {self!r} and "
                "num_key_value_heads=None"
            )
        permutation = permutations.sample_permutation(
            length,
            seed,
            padding_mask,
            num_key_value_heads=num_key_value_heads if per_head else None,
        )
        if per_head and padding_mask is None:
            permutation = permutation[0]
        inverse = permutations.invert_permutation(permutation)
        return DrawnPermutation(permutation, inverse, per_head)

    def needs(self):
        return frozenset(("heads",) if self.permutation_per == "head" else ())

    def mask(
        self,
        length,
        *,
        is_causal=False,
        seed=0,
        num_key_value_heads=None,
        padding_mask=None,
    ):
        slot = self.draw(
            length,
            seed=seed,
            num_key_value_heads=num_key_value_heads,
            padding_mask=padding_mask,
        ).slot_of
        row, column = slot[..., :, None], slot[..., None, :]
        if self.neighborhood == "block":
            mask = row // self.window_size == column // self.window_size
        else:
            reach = window_reach(self.window_size, is_causal=False)
            mask = within_reach(row - column, reach)
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
        num_key_value_heads=None,
    ):
        drawn = self.draw(
            length, seed=seed, num_key_value_heads=num_key_value_heads
        )
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        slot = ops.take(drawn.slot_of, positions, axis=-1)[..., None]
        if self.neighborhood == "block":
            first = slot // self.window_size * self.window_size
        else:
            first = slot - self.window_size // 2
        slots = first + ops.arange(self.window_size, dtype="int32")
        visible = ops.logical_and(slots >= 0, slots < length)
        neighbor = _tokens_in(drawn.permutation, ops.where(visible, slots, 0))
        if is_causal:
            visible = ops.logical_and(visible, neighbor <= positions[:, None])
        return ops.where(visible, neighbor, -1)

    def token_neighbors(
        self,
        length,
        *,
        is_causal=False,
        seed=0,
        num_key_value_heads=None,
        padding_mask=None,
    ):
        drawn = self.draw(
            length,
            seed=seed,
            num_key_value_heads=num_key_value_heads,
            padding_mask=padding_mask,
        )
        neighbors = self.neighbors(length, is_causal=is_causal, seed=drawn)
        if padding_mask is None:
            return neighbors
        return lists.between_real(neighbors, padding_mask)

    def pair_probability(self, length, num_key_value_heads=None):
        if length < 2:
            return 0.0
        if self.neighborhood == "block":
            full, rest = divmod(length, self.window_size)
            others = full * self.window_size * (self.window_size - 1)
            others += rest * (rest - 1)
        else:
            reach = window_reach(self.window_size, is_causal=False)
            others = counting.window_pairs(length, reach) - length
        probability = others / (length * (length - 1))
        if self.permutation_per == "layer":
            return probability
        return 1 - (1 - probability) ** (num_key_value_heads or 1)


def _tokens_in(permutation, slots):
    """The tokens `[..., T, w]` in slots, of permutations `[..., n]`."""
    shape, length = ops.shape(slots), ops.shape(permutation)[-1]
    flat = ops.reshape(slots, (-1, shape[-2] * shape[-1]))
    flat = flat + permutations.starts(ops.shape(flat)[0], length)
    tokens = ops.take(ops.reshape(permutation, (-1,)), flat, axis=0)
    return ops.reshape(tokens, shape)
