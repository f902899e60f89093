"""The base of all patterns: which tokens a token attends to, as plain data.

A pattern is immutable and hashable and holds no tensors. Whoever writes one of
their own subclasses `Pattern` and gives it `neighbors`; everything else
follows from it.

Letters: `B` batch, `n` tokens, `K` key/value heads, `T` tokens that attend,
`m` places in a list of neighbors.
"""

import dataclasses
from typing import ClassVar

from keras_sa.patterns import counting
from keras_sa.patterns import lists


@dataclasses.dataclass(frozen=True, repr=False)
class Pattern:
    """Which tokens a token attends to.

    A subclass is a frozen dataclass with a method `neighbors`. Its mask, its
    counts, ops, layers, `hub.swap_attention`, decoding, analysis and saving
    follow from that. To be saved with a model it is registered as any custom
    Keras object is. A pattern that draws at random says `is_random = True`
    and takes what it draws from `seed` alone.

    `a | b` attends to the keys of both in one softmax, each key once; `a + b`
    is the gated sum of two attentions.

    Example:

    >>> import dataclasses
    >>> from keras_sa.patterns import Pattern
    >>> @keras.saving.register_keras_serializable("my_package")
    ... @dataclasses.dataclass(frozen=True)
    ... class FirstOfBlock(Pattern):
    ...     block_size: int
    ...
    ...     def neighbors(
    ...         self, length, *, is_causal=False, seed=0, positions=None
    ...     ):
    ...         if positions is None:
    ...             positions = keras.ops.arange(length, dtype="int32")
    ...         first = positions // self.block_size * self.block_size
    ...         return keras.ops.stack([first, positions], axis=1)
    >>> FirstOfBlock(4).keys_per_token(8)
    1.75
    """

    is_random: ClassVar[bool] = False

    # What a subclass fills in.

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        """The keys that tokens attend to, as a list for each token.

        Args:
            length: `n`.
            is_causal: whether a token attends to no later token.
            seed: int of at most 32 bits or an int32 scalar tensor, or what
                `draw` returned.
            positions: int32 `[T]`: the tokens that attend. Default: all `n`.

        Returns:
            int32 `[T, m]`: positions, -1 for nobody, or `[K, T, m]` where
            key/value heads differ.
        """
        raise NotImplementedError(
            f"{type(self).__name__} is expected to have a method `neighbors"
            "(length, *, is_causal=False, seed=0, positions=None)` that "
            "returns int32 [T, m]. Received: a pattern without it"
        )

    # What follows from `neighbors`, and a subclass may know better.

    def draw(self, length, *, seed=0, num_key_value_heads=None, **others):
        """What `neighbors` and `mask` take in place of the seed.

        A permutation is drawn once then, and not at every call. By default
        the seed itself.

        Args:
            length: `n`.
            seed: as in `neighbors`; what `draw` returned stays as it is.
            num_key_value_heads: `K`, for what differs between heads.
            **others: `padding_mask`, boolean `[B, n]`.
        """
        return seed

    def token_neighbors(
        self,
        length,
        *,
        is_causal=False,
        seed=0,
        num_key_value_heads=None,
        padding_mask=None,
    ):
        """`neighbors` of all tokens, of which some may be padding.

        Tokens are ranked among the real ones: padding takes no place, attends
        to nobody and is attended to by nobody.

        Args: as in `mask`.

        Returns:
            int32 `[n, m]` or `[K, n, m]`; with a padding mask `[B, n, m]` or
            `[B, K, n, m]`.
        """
        seed = self.draw(
            length, seed=seed, num_key_value_heads=num_key_value_heads
        )
        neighbors = lists.neighbors_of(
            self, length, is_causal=is_causal, seed=seed
        )
        if padding_mask is None:
            return neighbors
        return lists.neighbors_by_rank(neighbors, padding_mask)

    def mask(
        self,
        length,
        *,
        is_causal=False,
        seed=0,
        num_key_value_heads=None,
        padding_mask=None,
    ):
        """Which keys each token attends to, in O(n^2).

        Args:
            length: `n`.
            is_causal: whether a token attends to no later token.
            seed: as in `neighbors`.
            num_key_value_heads: `K`, for what differs between heads.
            padding_mask: optional boolean `[B, n]`: true for real tokens.
                Padding attends to nobody and is attended to by nobody.

        Returns:
            Boolean `[n, n]`, row i attends to column j, or `[K, n, n]` where
            key/value heads differ; with a padding mask `[B, n, n]` or
            `[B, K, n, n]`.
        """
        neighbors = self.token_neighbors(
            length,
            is_causal=is_causal,
            seed=seed,
            num_key_value_heads=num_key_value_heads,
            padding_mask=padding_mask,
        )
        return lists.mask_of_neighbors(neighbors, length)

    def keys_per_token(self, length, *, is_causal=False):
        """The mean number of keys that a token attends to.

        Counted exactly, in expectation over permutations; each key once in a
        union, the sum over the terms of a gated sum. Of a random pattern that
        does not say how likely a pair is, the mean over some seeds.

        Args:
            length: `n`.
            is_causal: whether a token attends to no later token.

        Returns:
            A float between 0 and `n`.
        """
        return counting.keys_per_token((self,), length, is_causal)

    def pair_probability(self, length, num_key_value_heads=None):
        """How likely a token attends to another one, over permutations;
        `None` where that is not the same for all pairs. With
        `num_key_value_heads`, by any of these heads."""
        return None

    def reach(self, length, *, is_causal=False):
        """How many positions a token attends to `(left, right)` of its own,
        without a gap and as far as there are tokens; `None` where that is not
        the same for all tokens."""
        return None

    def dense_rows(self, length):
        """The tokens that attend to all tokens, as a slice of their ranks;
        `None` if the pattern is not made of such rows."""
        return None

    def without_dense_rows(self, length):
        """What is left without the parts that are `dense_rows`; `None` if
        nothing is. Seeds stay as they are."""
        return self if self.dense_rows(length) is None else None

    def leaves(self):
        """The patterns, not combined themselves, that it is made of."""
        return (self,)

    def contains(self, other):
        """Whether this pattern is known to have all keys of another one."""
        return not self.is_random and self == other

    def symmetric(self):
        """The bidirectional pattern which a causal mask cuts down to what
        this one is in a causal model.

        Raises:
            ValueError: if there is none.
        """
        return self

    def needs(self):
        """What only layers and ops can give: `"gates"`, `"routes"`."""
        return frozenset()

    def find_routes(self, find):
        """The `routes` that `mask` and `neighbors` take, or `None`.

        Args:
            find: function of `block_size` and `top_k` that returns them.
        """
        return None

    def why_not_decode(self):
        """Why a new token can't find its keys in a cache by `neighbors`, and
        what to do instead, as a sentence; `None` if it can."""
        return None

    @property
    def num_random(self):
        """How many seeds it uses up in a combination."""
        return int(self.is_random)

    def bind(self, **use):
        """This pattern together with what its use knows; see `BoundPattern`."""
        from keras_sa.patterns.bound import BoundPattern

        return BoundPattern(self, **use)

    # Combining.

    def __or__(self, other):
        from keras_sa.patterns.combined import Union

        if not isinstance(other, Pattern):
            return NotImplemented
        return Union(self, other)

    def __add__(self, other):
        from keras_sa.patterns.combined import GatedSum

        if not isinstance(other, Pattern):
            return NotImplemented
        return GatedSum(self, other)

    # Saving and showing.

    def get_config(self):
        """The arguments that make the pattern again."""
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields}

    @classmethod
    def from_config(cls, config):
        """The pattern that `get_config` describes."""
        return cls(**config)

    def __repr__(self):
        arguments = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING:
                arguments.append(repr(value))
            elif value != field.default:
                arguments.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _set(self, name, value):
        """Keeps a checked value in a frozen dataclass."""
        object.__setattr__(self, name, value)


_EXAMPLES = {
    "full": "Full()",
    "sliding_window": "SlidingWindow(window_size)",
    "stochastic": "Stochastic(window_size)",
    "small_world": "Stochastic(window_size) | SlidingWindow(window_size)",
    "block_routed": "BlockRouted(block_size, top_k)",
}


def check_pattern(pattern, name="pattern"):
    """Returns a `Pattern`.

    Raises:
        ValueError: for anything else, with what to write instead.
    """
    if isinstance(pattern, Pattern):
        return pattern
    cure = "such as SlidingWindow(256) | GlobalKeys(first=4)"
    if isinstance(pattern, str) and pattern in _EXAMPLES:
        cure = f"here keras_sa.patterns.{_EXAMPLES[pattern]}"
    if isinstance(pattern, type) and issubclass(pattern, Pattern):
        cure = "an instance, not the class"
    raise ValueError(
        f"`{name}` is expected to be a pattern of keras_sa.patterns, {cure}. "
        f"Received: {name}={pattern!r} (of type {type(pattern).__name__})"
    )
