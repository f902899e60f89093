"""Stochastic attention as an estimate of attention to everything.

Letters: `n` tokens, `w` window, `W` window sizes, `R` draws, `T` tokens or
one for all, `c` keys of a token, `k` those of full attention.
"""

import dataclasses

import numpy as np

from keras_sa import _validation
from keras_sa.analysis.graphs import neighbor_rows
from keras_sa.analysis.mixing import transition_matrix
from keras_sa.patterns import Stochastic


@dataclasses.dataclass(frozen=True)
class EstimatorError:
    """What `estimator_error` found; float64 `[W]` but for the first.

    Args:
        window_sizes: int64 `[W]`.
        squared_bias: measured, in the mean over tokens.
        squared_bias_error: its standard error.
        variance: measured, in the mean over tokens.
        variance_error: its standard error.
        expected_squared_bias: what the theory says.
        expected_variance: what the theory says.
    """

    window_sizes: np.ndarray
    squared_bias: np.ndarray
    squared_bias_error: np.ndarray
    variance: np.ndarray
    variance_error: np.ndarray
    expected_squared_bias: np.ndarray
    expected_variance: np.ndarray


def estimator_error(
    length,
    window_sizes,
    neighborhood="window",
    is_causal=False,
    num_draws=16,
    num_values=16,
    seed=0,
):
    """Bias and variance of stochastic for full attention, by window size.

    Scores are all equal: the output at a token is the mean of the values it
    attends to, and estimates the mean of all values or, under a causal mask, of
    those up to the token. Over random permutations the claims are,
    for values of variance 1 and the mean over the tokens:

    - The estimate is biased, since a token always attends to itself. Where it
      has `c` of `k` keys the bias is `(k - c) / (c (k - 1))` times the
      difference of its own value to the mean: the squared bias falls with
      1 / c^2.
    - What else it attends to is a sample without replacement, so that the
      variance is `(c - 1) / c^2 * (k - c) / (k - 1)`: it falls with 1 / c
      and is by far the larger part.
    - `c` is `w`, or less near both ends of the order and in a short last
      block. Under a causal mask it is random: 1 and what a draw of `c - 1`
      other tokens has of the `k - 1` that came before (hypergeometric). Early
      tokens, which mostly attend to themselves alone, then have most of the
      bias. What `c` varies adds to the variance, as the bias does with it.

    Both sides are in the result. What is measured are values drawn from a
    normal distribution, each set under permutations of its own; the part that
    the variance adds to the square of a mean over few draws is taken off. The
    theory is exact for any independent values of variance 1 and uniformly
    random permutations. Attention with unequal scores is not covered.

    Args:
        length: tokens `n`.
        window_sizes: ints `w`, at most `length`.
        neighborhood: `"window"` or `"block"`.
        is_causal: whether a token attends to no later token.
        num_draws: `R`: permutations for each set of values, 2 at least.
        num_values: sets of values, 2 at least: the measured numbers are means
            over them, the standard errors come from their spread.
        seed: int, of values and permutations.

    Returns:
        An `EstimatorError`.

    Raises:
        ValueError: for no window sizes, one above `length`, fewer than two
            draws or sets of values, or an unknown neighborhood.
    """
    _check_sizes(length, window_sizes, num_draws, num_values)
    generator = np.random.default_rng(seed)
    rows = []
    for window_size in window_sizes:
        pattern = Stochastic(window_size, neighborhood=neighborhood)
        pattern = pattern.bind(is_causal=is_causal)
        measured = [
            _measured(pattern, length, num_draws, generator)
            for _ in range(num_values)
        ]
        deviation = np.std(measured, axis=0, ddof=1)
        bias, variance = np.mean(measured, axis=0)
        bias_error, variance_error = deviation / num_values**0.5
        expected = _expected(pattern, length)
        rows.append((bias, bias_error, variance, variance_error, *expected))
    return EstimatorError(np.array(window_sizes), *np.transpose(rows))


def _check_sizes(length, window_sizes, num_draws, num_values):
    _validation.check_positive_int("length", length)
    sizes = [
        _validation.check_positive_int("window_sizes", x) for x in window_sizes
    ]
    if not sizes or max(sizes) > length:
        raise ValueError(
            "`window_sizes` is expected to be a list of integers up to "
            f"`length`. Received: window_sizes={window_sizes}, length={length}"
        )
    for name, value in (("num_draws", num_draws), ("num_values", num_values)):
        if _validation.check_positive_int(name, value) < 2:
            raise ValueError(
                f"`{name}` is expected to be at least 2, for a spread. "
                f"Received: {name}={value}"
            )


def _measured(pattern, length, num_draws, generator):
    """Squared bias and variance for one set of values, over the tokens."""
    values = generator.standard_normal(length)
    target = values.mean()
    if pattern.is_causal:
        target = np.cumsum(values) / np.arange(1, length + 1)
    errors = np.empty((num_draws, length))
    for draw in range(num_draws):
        drawn = dataclasses.replace(
            pattern, seed=int(generator.integers(2**32))
        )
        errors[draw] = transition_matrix(drawn, length) @ values - target
    variance = errors.var(axis=0, ddof=1)
    squared_bias = errors.mean(axis=0) ** 2 - variance / num_draws
    return squared_bias.mean(), variance.mean()


def _expected(pattern, length):
    """Squared bias and variance, in the mean over values and tokens."""
    whole = dataclasses.replace(pattern, is_causal=False)
    rows = neighbor_rows([whole], length)
    sizes = np.concatenate([(x >= 0).sum(axis=1) for _, x in rows])
    others = np.arange(length) if pattern.is_causal else np.array([length - 1])
    chance = _chance_of_seeing(sizes, others)  # [T, w]
    seen = np.arange(1, chance.shape[1] + 1)
    others = others[:, None]
    unseen = (others + 1 - seen) / np.maximum(others, 1)
    bias = unseen / seen  # for a difference of 1 to the mean
    sampling = unseen * (seen - 1) / seen**2
    mean_bias = (chance * bias).sum(axis=1)
    spread = (chance * bias**2).sum(axis=1) - mean_bias**2
    difference = (others / (others + 1))[:, 0]  # squared, to the mean
    variance = (chance * sampling).sum(axis=1) + difference * spread
    return (difference * mean_bias**2).mean(), variance.mean()


def _chance_of_seeing(sizes, others):
    """How probable it is to attend to 1 .. w of the tokens one may.

    Args:
        sizes: int `[n]`: tokens in the windows of all slots.
        others: int `[T]`: how many others a token may attend to.

    Returns:
        float64 `[T, w]`.
    """
    length, largest = len(sizes), sizes.max()
    fraction = np.bincount(sizes) / length
    chance = np.zeros((len(others), largest))
    chance[:, 0] = 1  # before any other is drawn
    total = fraction[1] * chance
    left = others[:, None] - np.arange(largest)
    for drawn in range(largest - 1):
        # One more other token comes into the window: is it one of these?
        is_seen = chance * left / (length - 1 - drawn)
        chance = chance - is_seen
        chance[:, 1:] += is_seen[:, :-1]
        total += fraction[drawn + 2] * chance
    return total
