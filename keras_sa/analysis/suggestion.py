"""Which window covers a text in as many layers as a model has.

Letters: `n` tokens, `L` layers, `w` window.
"""

import bisect
import dataclasses
import functools

from keras_sa import _validation
from keras_sa.analysis.expected_coverage import expected_coverage
from keras_sa.analysis.receptive_field import receptive_field
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

# Shares of the budget that the sliding window may get.
_FRACTIONS = tuple(eighth / 8 for eighth in range(9))
# Above as many tokens a sample of them is followed.
_EXACT, _SAMPLED = 2**12, 2**10


@dataclasses.dataclass(frozen=True)
class WindowSuggestion:
    """Windows that cover a text at a depth.

    Attributes:
        pattern: a `Stochastic`, a `SlidingWindow` or the gated sum of both;
            their union, which needs no training, reaches as far.
        keys_per_token: that a token attends to in a layer, in the mean and
            over a text much longer than the windows: the sum over both.
        coverage: measured: the fraction of earlier tokens that reaches a token
            after all layers, mean over tokens.
        standard_error: of `coverage`; 0 if it is exact.
        coverage_depth: the first layer where it is enough.
    """

    pattern: Pattern
    keys_per_token: int
    coverage: float
    standard_error: float
    coverage_depth: int


def suggest_window(
    length,
    layers,
    budget,
    coverage=0.99,
    neighborhood="window",
    num_key_value_heads=None,
    num_sources=None,
    seed=0,
    progress=None,
):
    """The smallest windows that cover a text under a causal mask.

    Tries fractions of the budget for the sliding window from none to all, in
    eighths. Theory says where to begin; what counts is the measured receptive
    field of as many layers with independent permutations. This is about what
    *can* reach a token. What a model learns to use is another question: see
    docs/results.md.

    Args:
        length: tokens `n` of the context.
        layers: int: layers `L` with this attention.
        budget: int: keys that a token may have in a layer, in both windows
            together. A stochastic window of `w` slots shows `(w + 1) / 2`
            under a causal mask.
        coverage: the fraction of earlier tokens that has to reach a token, mean
            over tokens.
        neighborhood: as in `keras_sa.patterns.Stochastic`.
        num_key_value_heads: optional int: a permutation for each of as many
            key/value heads. Default: one for the layer.
        num_sources: as in `receptive_field`. Default: all tokens up to 4,096,
            else 1,024.
        seed: int of at most 32 bits, of the permutations and the sample.
        progress: optional function of `(steps done, steps in all)`.

    Returns:
        A list of `WindowSuggestion`, the fewest keys first; for equal keys
        the larger coverage.

    Raises:
        ValueError: if an argument is not as above, or if no window within the
            budget covers the text.

    Example:

    >>> from keras_sa import analysis
    >>> best = analysis.suggest_window(1024, layers=4, budget=128)[0]
    >>> len(best.pattern.leaves()), best.keys_per_token < 64
    (2, True)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    for name, value in (
        ("length", length),
        ("layers", layers),
        ("budget", budget),
    ):
        _validation.check_positive_int(name, value)
    if not 0 < coverage <= 1:
        raise ValueError(
            "`coverage` is expected to be above 0 and at most 1. "
            f"Received: coverage={coverage}"
        )
    if num_sources is None and length > _EXACT:
        num_sources = _SAMPLED
    search = _Search(
        length,
        layers,
        coverage,
        num_sources,
        seed,
        neighborhood,
        num_key_value_heads,
    )
    budget = min(budget, length)
    found = set()  # several fractions may come to the same windows
    for number, fraction in enumerate(_FRACTIONS, start=1):
        found |= search.smallest(fraction, budget)
        if progress is not None:
            progress(number, len(_FRACTIONS))
    if not found:
        raise ValueError(search.why_none(budget))
    return sorted(found, key=lambda x: (x.keys_per_token, -x.coverage))


@dataclasses.dataclass(frozen=True)
class _Search:
    """Looks for the fewest keys that are enough; arguments as above."""

    length: int
    layers: int
    coverage: float
    num_sources: int | None
    seed: int
    neighborhood: str
    num_key_value_heads: int | None

    def smallest(self, fraction, budget):
        """A set of one `WindowSuggestion`, or empty."""
        start = self._expected(fraction, budget)

        @functools.cache
        def measured(keys):
            return self._measured(keys, fraction)

        keys = smallest_true(
            lambda keys: measured(keys).coverage[-1] >= self.coverage,
            start,
            budget,
        )
        if keys is None:
            return set()
        field = measured(keys)
        return {
            WindowSuggestion(
                pattern=self._pattern(keys, fraction),
                keys_per_token=keys,
                coverage=float(field.coverage[-1]),
                standard_error=float(field.standard_error[-1]),
                coverage_depth=field.coverage_depth(self.coverage),
            )
        }

    def why_none(self, budget):
        best = max(
            float(self._measured(budget, fraction).coverage[-1])
            for fraction in _FRACTIONS
        )
        return (
            f"No window of up to {budget} keys covers {self.coverage:.4g} of "
            f"the text in {self.layers} layers: the most is {best:.4g}. "
            "Expected: a larger `budget`, more `layers`, a shorter `length` or "
            f"less `coverage`. Received: length={self.length}, "
            f"layers={self.layers}, budget={budget}, coverage={self.coverage}"
        )

    def _expected(self, fraction, budget):
        """The fewest keys that are enough in theory, at most the budget."""
        keys = range(1, budget)
        return 1 + bisect.bisect_left(
            keys,
            self.coverage,
            key=lambda keys: expected_coverage(
                self._stack(keys, fraction), self.length
            )[-1],
        )

    def _measured(self, keys, fraction):
        return receptive_field(
            self._stack(keys, fraction),
            self.length,
            num_sources=self.num_sources,
            seed=self.seed % 2**32,
        )

    def _stack(self, keys, fraction):
        pattern = self._pattern(keys, fraction)
        return [
            pattern.bind(
                is_causal=True,
                seed=(self.seed + layer) % 2**32,
                num_key_value_heads=self.num_key_value_heads,
            )
            for layer in range(self.layers)
        ]

    def _pattern(self, keys, fraction):
        local, slots = windows(keys, fraction)
        if not slots:
            return SlidingWindow(local)
        stochastic = Stochastic(
            slots,
            self.neighborhood,
            "layer" if self.num_key_value_heads is None else "head",
        )
        return stochastic + SlidingWindow(local) if local else stochastic


def windows(keys, fraction):
    """Sizes of the sliding and of the stochastic window, 0 for none.

    Args:
        keys: that a token attends to in both under a causal mask.
        fraction: of these, in the sliding window.
    """
    local = round(fraction * keys)
    stochastic = keys - local
    return local, max(2 * stochastic - 1, 0)


def smallest_true(condition, start, most):
    """The smallest int up to `most` with a condition that holds for all above.

    Args:
        condition: function of an int of at least 1.
        start: int: where to begin.
        most: int.

    Returns:
        An int, or `None` if there is none.
    """
    low, high = 0, most + 1  # it does not hold at `low`, it does at `high`
    step, here = 1, start
    while low < here < high:
        if condition(here):
            high, here = here, here - step
        else:
            low, here = here, here + step
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if condition(middle):
            high = middle
        else:
            low = middle
    return high if high <= most else None
