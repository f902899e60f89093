"""The directed graph of an attention: an edge from each token to whom it sees.

Letters: `n` tokens, `w` window, `T` tokens that look.
"""

import numpy as np
import scipy.sparse
from keras import ops

from keras_sa import _validation
from keras_sa.analysis.sources import as_patterns

# Entries of neighbour lists at a time, and edges that a graph may have.
_ENTRIES = 2**22
_MOST_EDGES = 2**30


def attention_graph(source, length, causal=None):
    """The graph of an attention layer, or of all layers of a stack together.

    Row i has an entry in column j if token i sees token j in any of the
    layers; every token sees itself. No `[n, n]` array is built: it takes
    about 5 bytes for every edge, and twice that while it is made.

    Args:
        source: as in `as_patterns`.
        length: tokens `n`.
        causal: as in `as_patterns`.

    Returns:
        `scipy.sparse.csr_array` `[n, n]` of bool, columns in order.

    Raises:
        ValueError: for a source without attention, a `length` below 1, or
            more than 2**30 edges, such as full attention over a long text.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.ops import patterns
    >>> graph = analysis.attention_graph(patterns.SlidingWindow(3), 1000)
    >>> graph.shape, graph.nnz
    ((1000, 1000), 2998)
    """
    stack = as_patterns(source, causal)
    _validation.check_positive_int("length", length)
    _check_size(stack, length)
    columns, degrees = [], []
    for neighbors in neighbor_rows(stack, length):
        is_edge = neighbors >= 0
        columns.append(neighbors[is_edge])
        degrees.append(np.count_nonzero(is_edge, axis=1))
    columns = np.concatenate(columns)
    ends = np.cumsum(np.concatenate(degrees), dtype="int64")
    starts = np.concatenate([[0], ends])
    if len(columns) < 2**31:
        starts = starts.astype("int32")
    return scipy.sparse.csr_array(
        (np.ones(len(columns), bool), columns, starts), (length, length)
    )


def attention_graphs(source, length, causal=None):
    """The graphs of the layers of a stack, one after the other.

    Args: as in `attention_graph`.

    Yields:
        `scipy.sparse.csr_array` `[n, n]` for each layer.
    """
    for pattern in as_patterns(source, causal):
        yield attention_graph(pattern, length)


def neighbor_rows(stack, length):
    """Whom each token sees in any layer, some tokens at a time.

    Args:
        stack: list of patterns.
        length: `n`.

    Yields:
        int32 `[T, m]`, a row for each token from the first to the last: each
        neighbour once, in order; -1 elsewhere.
    """
    for start, stop in row_ranges(stack, length):
        positions = ops.arange(start, stop, dtype="int32")
        lists = [
            ops.convert_to_numpy(pattern.neighbors(length, positions))
            for pattern in stack
        ]
        neighbors = np.concatenate(lists, axis=1)
        neighbors.sort(axis=1)
        is_repeated = neighbors[:, 1:] == neighbors[:, :-1]
        neighbors[:, 1:][is_repeated] = -1
        yield neighbors


def row_ranges(stack, length):
    """`(start, stop)` of tokens whose neighbours fit in memory together."""
    width = sum(pattern.most_neighbors(length) for pattern in stack)
    step = max(1, _ENTRIES // width)
    for start in range(0, length, step):
        yield start, min(start + step, length)


def _check_size(stack, length):
    width = sum(min(x.most_neighbors(length), length) for x in stack)
    if min(width, length) * length > _MOST_EDGES:
        raise ValueError(
            "A graph is expected to have at most 2**30 edges. Take a shorter "
            "`length` or smaller windows; `receptive_field` takes full "
            f"attention as it is. Received: length={length} and up to "
            f"{min(width, length)} neighbours per token of {stack}"
        )
