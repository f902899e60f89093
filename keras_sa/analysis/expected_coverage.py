"""What theory says of the receptive field, beside what is measured.

Letters: `n` tokens, `L` layers, `w` window, `d` how far back a token is.
"""

import numpy as np

from keras_sa import _validation
from keras_sa.analysis.receptive_field import check_alike
from keras_sa.analysis.sources import as_patterns


def expected_coverage(source, length, is_causal=None):
    """The coverage of a stack of layers in a mean-field theory.

    Every path from a token to one that it reaches has a last random step: in
    layer `m`, from one of the tokens that sliding windows alone lead to
    through the layers above, to one that was reached after `m - 1` layers. A
    random permutation gives a token every other one as a key with the same
    probability `p`,
    and all of these steps are taken to be independent. So a token is not
    reached by the one `d` positions before it, farther than sliding windows
    alone lead, with the probability

        1 - q_l(d) = prod_m prod_u prod_z (1 - p q_{m-1}(z))

    over layers `m <= l`, tokens `u` that lead to it and tokens `z` that they
    may see. Sliding windows alone reach exactly that far. With independent
    orders and no causality, a token reaches about `w` times as many at every
    layer: all after `log_w n`. With causality `z` is between the two, a path
    has to go forward at every step, and of `l` random steps there are only
    about `p (p d)^(l-1) / (l-1)!` to a token `d` behind: hardly any to the
    tokens nearby.

    Args:
        source: as in `keras_sa.analysis.as_patterns`: layers of full,
            sliding-window, stochastic or small-world attention, which draw
            their orders independently.
        length: tokens `n`.
        is_causal: as in `as_patterns`.

    Returns:
        float64 `[L + 1]`: the expected `coverage` of `receptive_field`.

    Raises:
        ValueError: for block-routed layers, whose graph depends on the tokens,
            for layers that share a seed, if some layers are causal and others
            not, or for a bad `length`.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import SlidingWindow
    >>> stack = [SlidingWindow(11)] * 10
    >>> coverage = analysis.expected_coverage(stack, 101, is_causal=True)
    >>> float(coverage[-1])
    1.0

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    stack = as_patterns(source, is_causal)
    is_causal = check_alike(stack)
    _validation.check_positive_int("length", length)
    pairs = [_reach_and_probability(pattern, length) for pattern in stack]
    _check_independent(stack)
    local, probabilities = map(np.array, zip(*pairs))
    theory = _Causal if is_causal else _Bidirectional
    return np.array(theory(length, local, probabilities).coverage())


def _check_independent(stack):
    seeds = [pattern.seed for pattern in stack if pattern.pattern.is_random]
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            "The permutations of the layers are expected to be independent: "
            f"each with a seed of its own. Received: the seeds {seeds}"
        )


def _reach_and_probability(bound, length):
    """Positions to the left and right that a token attends to, int `[2]`, and
    the probability that it attends to some other one by a permutation."""
    reach, missed = np.zeros(2, int), 1.0
    for leaf in bound.pattern.leaves():
        near = leaf.reach(length, is_causal=bound.is_causal)
        chance = leaf.pair_probability(length, bound.num_key_value_heads)
        if near is None and chance is None:
            raise ValueError(
                "A theory is expected for layers in which all tokens have the "
                "same window, or the same chance of any key: Full, "
                "SlidingWindow, Stochastic, and what `|` and `+` make of them. "
                f"Received: {leaf}"
            )
        if chance is None:
            reach = np.maximum(reach, near)
        else:
            missed *= 1 - chance
    return reach, 1 - missed


class _Theory:
    """The recursion over layers; `reached` is `q_l` in some form.

    Args:
        length: `n`.
        local: int `[L, 2]`: positions that each layer shows, left and right.
        probabilities: `p` of each layer.
    """

    def __init__(self, length, local, probabilities):
        self.length, self.local = length, local
        self.probabilities = probabilities

    def coverage(self):
        """Floats `[L + 1]`."""
        reached = [self.start()]
        for layer in range(1, len(self.local) + 1):
            log_unreached = sum(
                self.last_step(
                    reached[step - 1],
                    self.probabilities[step - 1],
                    self.local[step:layer].sum(axis=0),
                )
                for step in range(1, layer + 1)
                if self.probabilities[step - 1]
            )
            by_chance = -np.expm1(log_unreached)
            local = self.local[:layer].sum(axis=0)
            reached.append(self.with_local(by_chance, local))
        return [self.mean(x) for x in reached]


class _Causal(_Theory):
    """`reached` is `q_l(d)` `[n]`: tokens are alike in what is behind them."""

    def start(self):
        return self.with_local(np.zeros(self.length), (0, 0))

    def with_local(self, by_chance, local):
        distance = np.arange(self.length)
        return np.where(distance <= local[0], 1.0, by_chance)

    def last_step(self, reached, probability, local):
        """The log of the probability that no such step is there, `[n]`."""
        log_unseen = np.log1p(-probability * reached)
        # To whom is between: before `u`, up to the token that is to reach.
        behind = np.concatenate([[0.0], np.cumsum(log_unseen)[:-1]])
        # From all `u` up to `local` positions behind.
        total = np.cumsum(behind)
        left = min(int(local[0]), self.length - 1)
        return total - np.concatenate(
            [np.zeros(left + 1), total[: self.length - left - 1]]
        )

    def mean(self, reached):
        """Over tokens i, of the fraction of `d = 0 .. i`."""
        return np.mean(np.cumsum(reached) / np.arange(1, self.length + 1))


class _Bidirectional(_Theory):
    """`reached` is two fractions: of pairs by windows, of others by chance.

    Whoever is beyond the windows is reached with the same probability.
    """

    def start(self):
        return self.with_local(0.0, (0, 0))

    def with_local(self, by_chance, local):
        return self._fraction(local), by_chance

    def last_step(self, reached, probability, local):
        """The log of the probability that no such step is there."""
        near, by_chance = reached
        log_unseen = near * np.log1p(-probability)
        log_unseen += (1 - near) * np.log1p(-probability * by_chance)
        return self.length**2 * self._fraction(local) * log_unseen

    def mean(self, reached):
        near, by_chance = reached
        return near + (1 - near) * by_chance

    def _fraction(self, local):
        """Of all pairs of tokens: those within some positions."""
        position = np.arange(self.length)
        first = np.maximum(position - local[0], 0)
        last = np.minimum(position + local[1], self.length - 1)
        return np.mean(last - first + 1) / self.length
