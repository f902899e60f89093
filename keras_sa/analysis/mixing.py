"""How fast a stack of layers mixes the tokens, if attention is uniform.

A layer whose scores are all equal averages over the keys of each token. That is
one step of a random walk on the attention graph, and a stack of layers is as
many steps, each on the graph of its layer.

Letters: `n` tokens, `L` layers, `S` tokens that are looked at.
"""

import dataclasses
import functools

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from keras_sa import _validation
from keras_sa.analysis import sampling
from keras_sa.analysis.graphs import attention_graph
from keras_sa.analysis.sources import as_patterns

# Up to so many tokens dense matrices are faster than ARPACK, and rows of all
# tokens are cheap enough.
_MOST_DENSE = 128
_MOST_EXACT = 2048
_SAMPLE = 64
# Tokens times restarts of ARPACK: about a minute.
_MOST_WORK = 2**24
# What is left of differences below this is rounding: full attention.
_ROUNDING = 1e-13


def transition_matrix(source, length, is_causal=None):
    """Uniform attention of one layer: row i is the mean over the keys of i.

    What several heads or paths of a layer attend to counts together and alike.

    Args:
        source: as in `as_patterns`, of one layer.
        length: tokens `n`.
        is_causal: as in `as_patterns`.

    Returns:
        `scipy.sparse.csr_array` `[n, n]` of float64; rows sum to 1.

    Raises:
        ValueError: for several layers, and as `attention_graph` does.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import SlidingWindow
    >>> analysis.transition_matrix(SlidingWindow(2), 3, True).toarray()
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    """
    stack = as_patterns(source, is_causal)
    if len(stack) > 1:
        raise ValueError(
            "`source` is expected to be one layer: layers of a stack come one "
            "after the other, and no matrix of uniform weights does what they "
            "do. Take `transition_matrices`. Received a stack of "
            f"{len(stack)} layers"
        )
    graph = attention_graph(stack, length)
    degrees = np.diff(graph.indptr)
    weights = np.repeat(1 / np.maximum(degrees, 1), degrees)
    return scipy.sparse.csr_array(
        (weights, graph.indices, graph.indptr), graph.shape
    )


def transition_matrices(source, length, is_causal=None):
    """The matrices of the layers of a stack, one after the other.

    Args: as in `transition_matrix`, of any number of layers.

    Yields:
        `scipy.sparse.csr_array` `[n, n]` for each layer. The stack does
        `matrices[-1] @ ... @ matrices[0]`.
    """
    for pattern in as_patterns(source, is_causal):
        yield transition_matrix(pattern, length)


@dataclasses.dataclass(frozen=True)
class SpectralGap:
    """What `spectral_gap` found.

    Args:
        moduli: float64 `[L]`: the second largest modulus of an eigenvalue of
            each layer; nan where it has not been found.
        product_modulus: that of the product of the layers.
        contractions: float64 `[L]`: the largest factor by which a layer can
            change the standard deviation, over the tokens, of any values.
        product_contraction: that of the product of the layers.
    """

    moduli: np.ndarray
    product_modulus: float
    contractions: np.ndarray
    product_contraction: float

    @property
    def gaps(self):
        """float64 `[L]`: 1 less the modulus, for each layer."""
        return 1 - self.moduli

    @property
    def product_gap(self):
        """1 less the modulus of the product."""
        return 1 - self.product_modulus


def spectral_gap(source, length, is_causal=None):
    """The spectral gap of each layer and of the product of the layers.

    The largest eigenvalue of uniform attention is 1, for equal values. The
    second largest modulus tells what is left of unequal values each time the
    layer, or for the product the whole stack, is repeated, in the long run.
    A permutation changes no eigenvalue: without a mask a
    stochastic window has those of a sliding window, and blocks, which never
    mix with one another, have a gap of 0. It is the product of independent
    permutations that has a large gap: each layer leaves about 1 / sqrt(w).

    The limit is the stationary distribution. It is uniform up to the ends of
    the windows, which are shorter. A window of an even size reaches back by one
    more than ahead: repeated with the same permutation it drifts to the
    beginning of that, and to uniform attention no more.

    Under a causal mask the matrices are triangular, and their eigenvalues
    stand on the diagonal: 1 over the number of keys of a token. The
    limit is then all weight on the first token, and not uniform attention; a
    gap of 0 means that another token, too, attends to itself alone in every
    layer.
    This says nothing of a few layers: see `total_variation`.

    Contractions hold for a single pass instead, at worst: values with a
    standard deviation of 1 over the tokens come out with no more than that.
    It is 1 or less if every token is a key of as many as it has keys; a little
    more at the ends of windows, and much more under a causal mask, where many
    tokens take over what a few early ones hold.

    Up to 128 tokens this is dense linear algebra. Above it is ARPACK's, to
    working precision, takes no `[n, n]` array, and gives nan for what has not
    converged after about a minute: windows over more than some ten thousand
    tokens, whose gap of about (w / n)^2 is small. Drift makes eigenvalues
    sensitive: those of windows of an even size have fewer digits the more
    tokens there are for w^2, and may not converge at all.

    Args:
        source: as in `as_patterns`.
        length: tokens `n`.
        is_causal: as in `as_patterns`.

    Returns:
        A `SpectralGap`.

    Raises:
        ValueError: as `attention_graph` does.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import Stochastic
    >>> same = [Stochastic(9).bind(seed=0)] * 2
    >>> round(analysis.spectral_gap(same, 100).product_gap, 2)
    0.01
    >>> other = [Stochastic(9).bind(seed=layer) for layer in range(2)]
    >>> round(analysis.spectral_gap(other, 100).product_gap, 2)
    0.75
    """
    matrices = list(transition_matrices(source, length, is_causal))
    return SpectralGap(
        moduli=np.array([_second_modulus([x]) for x in matrices]),
        product_modulus=_second_modulus(matrices),
        contractions=np.array([_contraction([x]) for x in matrices]),
        product_contraction=_contraction(matrices),
    )


def _second_modulus(matrices):
    length = matrices[0].shape[0]
    if length == 1:
        return 0.0
    if all(_is_lower_triangular(matrix) for matrix in matrices):
        diagonal = np.prod([x.diagonal() for x in matrices], axis=0)
        return float(np.partition(diagonal, -2)[-2])
    # Without its mean a vector has no part in the eigenvalue 1. The others
    # stay (A. Brauer, Duke Math. J. 19, 1952).
    forward = functools.partial(_differences, matrices)
    if length <= _MOST_DENSE:
        modulus = np.abs(np.linalg.eigvals(forward(np.eye(length)))).max()
        return min(float(modulus), 1.0)
    operator = scipy.sparse.linalg.LinearOperator(
        (length, length), matvec=forward, dtype="float64"
    )
    return min(_largest(operator, scipy.sparse.linalg.eigs), 1.0)


def _contraction(matrices):
    length = matrices[0].shape[0]
    forward = functools.partial(_differences, matrices)
    if length <= _MOST_DENSE:
        return float(np.linalg.norm(forward(np.eye(length)), 2))
    # Centred before and after, the transpose is the transposes in reverse.
    transposes = [matrix.T.tocsr() for matrix in reversed(matrices)]
    backward = functools.partial(_differences, transposes)
    operator = scipy.sparse.linalg.LinearOperator(
        (length, length),
        matvec=lambda x: backward(forward(x)),
        dtype="float64",
    )
    return _largest(operator, scipy.sparse.linalg.eigsh) ** 0.5


def _is_lower_triangular(matrix):
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return bool((matrix.indices <= row).all())


def _differences(matrices, values):
    """The stack on values `[n, ...]` without their mean, before and after.

    It is taken off after every layer: what rounding puts back there would
    soon be larger than the differences.
    """
    values = values - values.mean(axis=0)
    for matrix in matrices:
        sizes = np.linalg.norm(values, axis=0)
        values = matrix @ values
        values -= values.mean(axis=0)
        values *= np.linalg.norm(values, axis=0) > _ROUNDING * sizes
    return values


def _largest(operator, solver):
    """The largest modulus of an eigenvalue; nan without convergence."""
    start = np.random.default_rng(0).normal(size=operator.shape[0])
    if not operator.matvec(start).any():
        return 0.0
    try:
        values = solver(
            operator,
            k=1,
            v0=start,
            maxiter=_MOST_WORK // operator.shape[0] + 1,
            return_eigenvectors=False,
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        return np.nan
    return float(abs(values[0]))


@dataclasses.dataclass(frozen=True)
class TotalVariation:
    """What `total_variation` found.

    Args:
        tokens: int64 `[S]`: the tokens looked at, in order.
        distances: float64 `[L, S]`: the distance of each after 1 .. L layers.
        length: `n`.
    """

    tokens: np.ndarray
    distances: np.ndarray
    length: int

    @property
    def mean(self):
        """float64 `[L]`: mean over the tokens."""
        return self.distances.mean(axis=1)

    @property
    def standard_error(self):
        """float64 `[L]`: of the mean, as an estimate of that of all tokens.

        0 if they are all there, nan for one of several. Other permutations
        are not in it.
        """
        num_layers, num_tokens = self.distances.shape
        if num_tokens == self.length:
            return np.zeros(num_layers)
        if num_tokens == 1:
            return np.full(num_layers, np.nan)
        deviation = self.distances.std(axis=1, ddof=1)
        return deviation * (1 / num_tokens - 1 / self.length) ** 0.5

    @property
    def worst(self):
        """float64 `[L]`: the largest among the tokens looked at."""
        return self.distances.max(axis=1)


def total_variation(source, length, is_causal=None, num_tokens=None, seed=0):
    """How far tokens are from an even view of everything, layer by layer.

    After l layers of uniform attention token i holds a mean of the inputs,
    whose weights are row i of the product of the first l matrices. The
    distance is half the sum of the absolute differences between these
    weights and equal ones, over all tokens or, under a causal mask, over
    tokens 0 .. i. It is 0 for full attention and (n - w) / n for one layer
    that attends to w of n tokens.

    Args:
        source: as in `as_patterns`.
        length: tokens `n`.
        is_causal: as in `as_patterns`. A stack is causal if all its layers are.
        num_tokens: `S`: how many tokens to measure, drawn at random without
            replacement. Default: all up to 2048, and 64 of more. All take
            O(n^2) memory.
        seed: int, of that draw.

    Returns:
        A `TotalVariation`.

    Raises:
        ValueError: as `attention_graph` does, and for a `num_tokens` below 1
            or above `length`.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import Stochastic
    >>> same = [Stochastic(16).bind(seed=0)] * 3
    >>> other = [Stochastic(16).bind(seed=layer) for layer in range(3)]
    >>> analysis.total_variation(same, 500).mean.round(2)
    array([0.97, 0.94, 0.92])
    >>> analysis.total_variation(other, 500).mean.round(2)
    array([0.97, 0.6 , 0.13])
    """
    stack = as_patterns(source, is_causal)
    _validation.check_positive_int("length", length)
    if num_tokens is None:
        num_tokens = length if length <= _MOST_EXACT else _SAMPLE
    tokens = sampling.choose("num_tokens", num_tokens, length, seed)
    matrices = list(transition_matrices(stack, length))
    is_causal = all(pattern.is_causal for pattern in stack)
    if len(tokens) == length:
        products = _products(matrices)
    else:
        products = _rows_of_products(matrices, tokens)
    distances = [_distances(x, tokens, is_causal) for x in products]
    return TotalVariation(tokens, np.array(distances), length)


def _products(matrices):
    """`[n, n]`: the products of the first 1 .. L matrices, transposed."""
    product = np.eye(matrices[0].shape[0])
    for matrix in matrices:
        product = matrix @ product
        yield product.T


def _rows_of_products(matrices, tokens):
    """The same for some of the rows, `[n, S]`.

    Rows meet the last matrix first, so every depth starts anew.
    """
    transposes = [matrix.T.tocsr() for matrix in matrices]
    start = np.zeros((matrices[0].shape[0], len(tokens)))
    start[tokens, np.arange(len(tokens))] = 1
    for depth in range(1, len(matrices) + 1):
        weights = start
        for transpose in reversed(transposes[:depth]):
            weights = transpose @ weights
        yield weights


def _distances(weights, tokens, is_causal):
    """Total variation `[S]` to equal weights, of the columns of `[n, S]`."""
    length = len(weights)
    if not is_causal:
        return np.abs(weights - 1 / length).sum(axis=0) / 2
    allowed = np.arange(length)[:, None] <= tokens
    return np.abs(weights - allowed / (tokens + 1)).sum(axis=0) / 2
