"""How much of the text has reached a token after each layer.

Information goes from a key to the token that attends to it: token j reaches
token i after `l` layers if i attends, in layer `l`, to a token that j reached
after `l - 1` layers. A set of tokens is a row of bits.

Letters: `n` tokens, `L` layers, `S` sources: the tokens that are followed,
`W` words of 64 of them.
"""

import dataclasses

import numpy as np

from keras_sa import _validation
from keras_sa.analysis import sampling
from keras_sa.analysis.graphs import neighbor_rows
from keras_sa.analysis.sources import as_patterns

# Above as many tokens a sample of them is followed.
_EXACT, _SAMPLED = 2**14, 1024
# Words of all tokens, and of some, that are in memory at a time.
_WORDS, _WORDS_AT_A_TIME = 2**23, 2**16


@dataclasses.dataclass(frozen=True)
class ReceptiveField:
    """What `receptive_field` found; index 0 is the input, `l` is layer `l`.

    Attributes:
        length: tokens `n`.
        is_causal: whether all layers are causal. The fraction that reaches
            a token is then of the tokens up to itself, else of all.
        coverage: float64 `[L + 1]`: the fraction that reaches a token, mean
            over tokens.
        standard_error: float64 `[L + 1]`, of `coverage`; 0 if it is exact.
        token_coverage: float32 `[L + 1, n]`: the fraction for each token; of
            the sources only, and nan before the first of them, if sampled.
        num_sources: how many tokens were followed.
        distance_coverage: float64 `[L + 1, D]`, or `None` unless asked for:
            the fraction of pairs of tokens, one of which reaches the other, by
            their distance: 1, 2 - 3, 4 - 7, ... positions.
    """

    length: int
    is_causal: bool
    coverage: np.ndarray
    standard_error: np.ndarray
    token_coverage: np.ndarray
    num_sources: int
    distance_coverage: np.ndarray | None = None

    @property
    def is_exact(self):
        """Whether all tokens were followed."""
        return self.num_sources == self.length

    def coverage_depth(self, fraction=1.0):
        """The first layer of at least this `coverage`, or `None`."""
        return first_depth(self.coverage, fraction)


def first_depth(coverage, fraction):
    """The first index of an array that is at least `fraction`, or `None`.

    Args:
        coverage: `[L + 1]`.
        fraction: between 0 and 1.
    """
    if not 0 < fraction <= 1:
        raise ValueError(
            "`fraction` is expected to be above 0 and at most 1. "
            f"Received: fraction={fraction}"
        )
    enough = np.flatnonzero(np.asarray(coverage) >= fraction)
    return int(enough[0]) if len(enough) else None


def receptive_field(
    source,
    length,
    is_causal=None,
    num_sources=None,
    by_distance=False,
    seed=0,
    progress=None,
):
    """How much of the text has reached a token after each layer.

    All tokens are followed up to 16,384, exactly; above, a random sample of
    them, with a standard error. Full attention may be among the layers at any
    length. It takes `n S / 8` bytes, 64 MB at a time, and for every layer
    `n w S / 64` operations on words.

    Args:
        source: as in `keras_sa.analysis.as_patterns`.
        length: tokens `n`.
        is_causal: as in `as_patterns`.
        num_sources: int up to `n`: how many tokens are followed. Default: all
            of them up to 16,384 tokens, else 1,024.
        by_distance: whether to find `distance_coverage` as well, which looks
            at each of `n S` pairs.
        seed: int, of the sample.
        progress: optional function of `(steps done, steps in all)`.

    Returns:
        A `ReceptiveField`.

    Raises:
        ValueError: if an argument is not as above, or if some layers are
            causal and others not.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import Stochastic
    >>> stack = [Stochastic(64)] * 3  # each with a permutation of its own
    >>> analysis.receptive_field(stack, 1000).coverage_depth()
    3

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    stack = as_patterns(source, is_causal)
    is_causal = check_alike(stack)
    _validation.check_positive_int("length", length)
    if num_sources is None:
        num_sources = length if length <= _EXACT else _SAMPLED
    sources = sampling.choose("num_sources", num_sources, length, seed)
    parts = np.array_split(sources, _num_parts(len(sources), length))
    tally = _Tally(len(stack), length, is_causal, sources)
    by_distance = _ByDistance(tally) if by_distance else None
    for number, part in enumerate(parts):
        for layer, reached in _after_each_layer(stack, part, length):
            tally.add(layer, reached, part)
            if by_distance is not None:
                by_distance.add(layer, reached, part)
            if progress is not None:
                done = number * len(stack) + layer
                progress(done, len(parts) * len(stack))
    field = tally.result()
    if by_distance is None:
        return field
    return dataclasses.replace(field, distance_coverage=by_distance.result())


def check_alike(stack):
    """Whether the layers are causal; raises unless they agree."""
    is_causal = {pattern.is_causal for pattern in stack}
    if len(is_causal) > 1:
        raise ValueError(
            "The layers are expected to be causal, or not, all of them: say "
            f"which by `is_causal`. Received: {stack}"
        )
    return is_causal.pop()


def _num_parts(num_sources, length):
    return -(-num_sources * length // (64 * _WORDS))


def _after_each_layer(stack, sources, length):
    """Yields the layer and which sources reached each token, `[n + 1, W]`.

    The last row, which stands for nobody, is empty.
    """
    reached = np.zeros((length + 1, -(-len(sources) // 64)), "uint64")
    number = np.arange(len(sources))
    bit = np.left_shift(np.uint64(1), (number % 64).astype("uint64"))
    reached[sources, number // 64] = bit
    yield 0, reached
    for layer, pattern in enumerate(stack, start=1):
        reached = _through(pattern, reached, length)
        yield layer, reached


def _through(pattern, reached, length):
    """What reaches each token through one more layer."""
    after, so_far = np.zeros_like(reached), None
    for rows, neighbors in neighbor_rows([pattern], length):
        if neighbors is not None:
            _collect(reached, neighbors, after[rows])
            continue
        if so_far is None:
            so_far = np.bitwise_or.accumulate(reached, axis=0)
        after[rows] = so_far[rows] if pattern.is_causal else so_far[-1]
    return after


def _collect(reached, neighbors, after):
    """Adds to each row what reached any of its neighbors; -1 is nobody."""
    step = max(1, _WORDS_AT_A_TIME // reached.shape[1])
    for start in range(0, len(neighbors), step):
        rows = after[start : start + step]
        buffer = np.empty_like(rows)
        for column in neighbors[start : start + step].T:
            np.take(reached, column, axis=0, out=buffer, mode="wrap")
            rows |= buffer


class _Tally:
    """Counts what was reached.

    With a sample of sources `s`, the mean over tokens is a ratio of sums over
    sources: `sum_s a_s / sum_s b_s`, with `a_s` the sum over the tokens i that
    s reached of 1 / (tokens that could reach i), and `b_s` the same over all
    tokens that s could reach. Complete coverage is then exactly 1.
    """

    def __init__(self, num_layers, length, is_causal, sources):
        self.length, self.is_causal, self.sources = length, is_causal, sources
        shape = (num_layers + 1, length)
        self.counts = np.zeros(shape, "int64")
        self.sums = np.zeros((num_layers + 1, len(sources)))
        position = np.arange(length)
        self.weights = (
            1 / (position + 1) if is_causal else np.full(length, 1 / length)
        )

    def add(self, layer, reached, part):
        reached = reached[: self.length]
        self.counts[layer] += np.bitwise_count(reached).sum(axis=1, dtype=int)
        if len(self.sources) < self.length:
            place = np.searchsorted(self.sources, part)
            self.sums[layer, place] = _weighted_bits(
                reached, self.weights, len(part)
            )

    def result(self):
        possible = np.full(self.length, len(self.sources))
        if self.is_causal:
            position = np.arange(self.length)
            possible = np.searchsorted(self.sources, position, side="right")
        fraction = np.where(
            possible > 0, self.counts / np.maximum(possible, 1), np.nan
        )
        if len(self.sources) == self.length:
            coverage = fraction.mean(axis=1)
            error = np.zeros_like(coverage)
        else:
            coverage, error = self._ratio()
            # Sums of floats would leave it a little aside of 1.
            is_complete = (self.counts == possible).all(axis=1)
            coverage = np.where(is_complete, 1.0, coverage)
            error = np.where(is_complete, 0.0, error)
        return ReceptiveField(
            length=self.length,
            is_causal=self.is_causal,
            coverage=coverage,
            standard_error=error,
            token_coverage=fraction.astype("float32"),
            num_sources=len(self.sources),
        )

    def _ratio(self):
        """The ratio of sums `[L + 1]` and its standard error."""
        could = np.ones(len(self.sources))
        if self.is_causal:
            could = np.cumsum(self.weights[::-1])[::-1][self.sources]
        return sampling.ratio_of_sums(self.sums, could, self.length)


class _ByDistance:
    """Counts what was reached by how far away it is."""

    def __init__(self, tally):
        self.length, self.is_causal = tally.length, tally.is_causal
        num_layers = len(tally.counts)
        num_bins = max(self.length - 1, 1).bit_length()
        self.reached = np.zeros((num_layers, num_bins))
        self.possible = np.zeros((num_layers, num_bins))

    def add(self, layer, reached, part):
        for rows, bits in _bits(reached[: self.length], len(part)):
            distance = np.arange(self.length)[rows, None] - part
            if not self.is_causal:
                distance = np.abs(distance)
            is_pair = distance > 0
            # The exponent of a float, exactly: 1 -> 0, 2 and 3 -> 1, ...
            place = np.frexp(distance[is_pair].astype("float64"))[1] - 1
            num_bins = self.possible.shape[1]
            self.possible[layer] += np.bincount(place, minlength=num_bins)
            self.reached[layer] += np.bincount(
                place, bits[is_pair], minlength=num_bins
            )

    def result(self):
        """`[L + 1, D]`; nan where there is no pair."""
        return np.divide(
            self.reached,
            self.possible,
            out=np.full(self.possible.shape, np.nan),
            where=self.possible > 0,
        )


def _weighted_bits(reached, weights, num_sources):
    """For each source `[S]` the sum of the weights of what it reached."""
    return sum(
        weights[rows] @ bits for rows, bits in _bits(reached, num_sources)
    )


def _bits(reached, num_sources):
    """Yields some rows at a time: a slice, and 0 or 1 for each source."""
    step = max(1, 2**16 // reached.shape[1])
    for start in range(0, len(reached), step):
        rows = slice(start, start + step)
        words = np.ascontiguousarray(reached[rows])
        octets = words.astype("<u8", copy=False).view("uint8")
        bits = np.unpackbits(octets, axis=1, bitorder="little")
        yield rows, bits[:, :num_sources]
