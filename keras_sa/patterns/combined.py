"""Patterns made of patterns: `|` and `+`.

Letters: `n` tokens.
"""

import dataclasses

import keras

from keras_sa.patterns import counting
from keras_sa.patterns import lists
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns.pattern import Pattern
from keras_sa.patterns.pattern import check_pattern


class Draws(tuple):
    """What the members of a combination drew, in their order."""


class Combination(Pattern):
    """What `Union` and `GatedSum` share: members that are patterns."""

    @property
    def members(self):
        raise NotImplementedError

    @property
    def is_random(self):
        return self.num_random > 0

    @property
    def num_random(self):
        return sum(member.num_random for member in self.members)

    def needs(self):
        return frozenset().union(*(member.needs() for member in self.members))

    def leaves(self):
        return sum((member.leaves() for member in self.members), ())

    def without_dense_rows(self, length):
        left = [x.without_dense_rows(length) for x in self.members]
        left = [x for x in left if x is not None]
        return type(self)(*left) if left else None

    def find_routes(self, find):
        if "routes" not in self.needs():
            return None
        return tuple(member.find_routes(find) for member in self.members)

    def why_not_decode(self):
        reasons = (member.why_not_decode() for member in self.members)
        return next((x for x in reasons if x is not None), None)

    def seeds(self, seed):
        """A seed for each member; `Draws` as they are.

        The first random one gets the seed itself, the k-th after it a seed
        folded with k.
        """
        if isinstance(seed, Draws):
            return seed
        seeds, k = [], 0
        for member in self.members:
            seeds.append(permutations.fold_seed(seed, k))
            k += member.num_random
        return seeds

    def draw(self, length, *, seed=0, **use):
        if isinstance(seed, Draws):
            return seed
        pairs = zip(self.members, self.seeds(seed))
        return Draws(x.draw(length, seed=s, **use) for x, s in pairs)

    def mask(self, length, *, seed=0, routes=None, **use):
        routes = routes or [None] * len(self.members)
        return lists.any_of(
            [
                x.mask(length, seed=s, **lists.given(routes=r), **use)
                for x, s, r in zip(self.members, self.seeds(seed), routes)
            ]
        )

    def neighbors(
        self, length, *, seed=0, num_key_value_heads=None, routes=None, **use
    ):
        """int32 `[T, m]` or `[K, T, m]`: each key once. `routes` are those of
        each member, or `None`."""
        draws = self.draw(
            length, seed=seed, num_key_value_heads=num_key_value_heads
        )
        routes = routes or [None] * len(self.members)
        return lists.together(
            [
                x.neighbors(length, seed=s, **lists.given(routes=r), **use)
                for x, s, r in zip(self.members, draws, routes)
            ]
        )

    def token_neighbors(self, length, *, seed=0, **use):
        pairs = zip(self.members, self.seeds(seed))
        return lists.together(
            [x.token_neighbors(length, seed=s, **use) for x, s in pairs]
        )

    def get_config(self):
        name = dataclasses.fields(self)[0].name
        serialize = keras.saving.serialize_keras_object
        return {name: [serialize(member) for member in self.members]}

    @classmethod
    def from_config(cls, config):
        (members,) = config.values()
        deserialize = keras.saving.deserialize_keras_object
        return cls(*(deserialize(member) for member in members))

    def _keep(self, cls, members):
        """Flat and checked, in the one field of the dataclass."""
        flat = []
        for member in members:
            check_pattern(member, "parts" if cls is Union else "terms")
            flat += member.members if isinstance(member, cls) else [member]
        self._set(dataclasses.fields(self)[0].name, tuple(flat))


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class Union(Combination):
    """Several patterns in one softmax: `a | b`.

    A token attends to the keys of all parts, each key once, whatever overlaps.
    There is nothing to train.

    Args:
        *parts: patterns.

    Example:

    >>> from keras_sa.patterns import GlobalKeys
    >>> from keras_sa.patterns import SlidingWindow
    >>> from keras_sa.patterns import Stochastic
    >>> SlidingWindow(128) | Stochastic(128) | GlobalKeys(first=4)
    SlidingWindow(128) | Stochastic(128) | GlobalKeys(first=4)
    """

    parts: tuple

    def __init__(self, *parts):
        self._keep(Union, parts)
        for part in self.parts:
            if "gates" in part.needs():
                raise ValueError(
                    "A union `|` is one softmax and expects no gated sum "
                    "inside. Write (a | b) + c with the parentheses, or "
                    "(a | c) + (b | c) for what all terms attend to. "
                    f"Received: {part!r} as a part"
                )
            if "routes" in part.needs():
                raise ValueError(
                    "A union `|` expects patterns that are known before the "
                    "queries are. BlockRouted combines by `+` alone: "
                    "BlockRouted(...) + SlidingWindow(...). "
                    f"Received: {part!r} as a part"
                )
        if not self.parts:
            raise ValueError("Union expects a pattern. Received: none")

    @property
    def members(self):
        return self.parts

    def keys_per_token(self, length, *, is_causal=False):
        return counting.keys_per_token(self.parts, length, is_causal)

    def contains(self, other):
        return any(part.contains(other) for part in self.parts)

    def symmetric(self):
        return Union(*(part.symmetric() for part in self.parts))

    def __repr__(self):
        if len(self.parts) == 1:
            return f"Union({self.parts[0]!r})"
        return " | ".join(map(repr, self.parts))


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class GatedSum(Combination):
    """Several attentions, added up by learned gates: `a + b`.

    Each term is a softmax of its own, and each has a gate per head that is a
    function of the token. Gates have to be trained.

    Args:
        *terms: patterns; one alone has a gate as well.

    Example:

    >>> from keras_sa.patterns import SlidingWindow
    >>> from keras_sa.patterns import Stochastic
    >>> (Stochastic(256) + SlidingWindow(256)).terms
    (Stochastic(256), SlidingWindow(256))

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """

    terms: tuple

    def __init__(self, *terms):
        self._keep(GatedSum, terms)
        if not self.terms:
            raise ValueError("GatedSum expects a pattern. Received: none")

    @property
    def members(self):
        return self.terms

    def keys_per_token(self, length, *, is_causal=False):
        return sum(
            term.keys_per_token(length, is_causal=is_causal)
            for term in self.terms
        )

    def symmetric(self):
        return GatedSum(*(term.symmetric() for term in self.terms))

    def needs(self):
        return super().needs() | {"gates"}

    def __repr__(self):
        if len(self.terms) == 1:
            return f"GatedSum({self.terms[0]!r})"
        unions = (isinstance(term, Union) for term in self.terms)
        return " + ".join(
            f"({term!r})" if is_union else repr(term)
            for term, is_union in zip(self.terms, unions)
        )
