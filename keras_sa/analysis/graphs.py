"""The directed graph of an attention: an edge to each key of a token.

Letters: `n` tokens, `T` tokens that attend, `m` places in a list of neighbors.
"""

import numpy as np
import scipy.sparse
from keras import ops

from keras_sa import _validation
from keras_sa.analysis.sources import as_patterns

# Entries of neighbor lists at a time, and edges that a graph may have.
_ENTRIES = 2**22
_MOST_EDGES = 2**30


def attention_graph(source, length, is_causal=None):
    """The graph of an attention layer, or of all layers of a stack together.

    Row i has an entry in column j if token i attends to token j in any of the
    layers. No `[n, n]` array is built: it takes about 5 bytes for every edge,
    and twice that while it is made.

    Args:
        source: as in `as_patterns`.
        length: tokens `n`.
        is_causal: as in `as_patterns`.

    Returns:
        `scipy.sparse.csr_array` `[n, n]` of bool, columns in order.

    Raises:
        ValueError: for a source without attention, a `length` below 1, or
            more than 2**30 edges, such as full attention over a long text.

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.patterns import SlidingWindow
    >>> graph = analysis.attention_graph(SlidingWindow(3), 1000)
    >>> graph.shape, graph.nnz
    ((1000, 1000), 2998)
    """
    stack = as_patterns(source, is_causal)
    _validation.check_positive_int("length", length)
    if most_edges(stack, length) > _MOST_EDGES:
        raise ValueError(
            "A graph is expected to have at most 2**30 edges. Take a shorter "
            "`length` or smaller windows; `receptive_field` takes full "
            f"attention as it is. Received: length={length} and up to "
            f"{most_edges(stack, length):,} edges of {stack}"
        )
    columns, degrees = [], []
    for rows, neighbors in neighbor_rows(stack, length):
        if neighbors is None:
            neighbors = _united(stack, length, rows)
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


def attention_graphs(source, length, is_causal=None):
    """The graphs of the layers of a stack, one after the other.

    Args: as in `attention_graph`.

    Yields:
        `scipy.sparse.csr_array` `[n, n]` for each layer.
    """
    for pattern in as_patterns(source, is_causal):
        yield attention_graph(pattern, length)


def neighbor_rows(stack, length):
    """What each token attends to in any layer, some tokens at a time.

    Args:
        stack: list of `BoundPattern`.
        length: `n`.

    Yields:
        `(rows, neighbors)` from the first token to the last: a slice, and
        int32 `[T, m]` with each neighbor once, in order, and -1 elsewhere; or
        `None` for tokens that attend to all tokens, or to all before, in one
        of the layers.
    """
    dense, rest = split(stack, length)
    rest = [pattern.draw(length) for pattern in rest]
    widths = (sum(x.most_neighbors(length) for x in rest), length)
    bounds = [0, *np.flatnonzero(np.diff(dense)) + 1, length]
    for first, end in zip(bounds[:-1], bounds[1:]):
        step = max(1, _ENTRIES // max(widths[int(dense[first])], 1))
        for start in range(first, end, step):
            rows = slice(start, min(start + step, end))
            yield rows, None if dense[first] else _united(rest, length, rows)


def split(stack, length):
    """`BoundPattern.split` of all layers: boolean `[n]` and a list."""
    parts = [pattern.split(length) for pattern in stack]
    dense = np.any([dense for dense, _ in parts], axis=0)
    return dense, [rest for _, rest in parts if rest is not None]


def most_edges(stack, length):
    """How many edges the graph of a stack has at most."""
    dense, rest = split(stack, length)
    width = sum(min(x.most_neighbors(length), length) for x in rest)
    num_dense = int(dense.sum())
    return num_dense * length + (length - num_dense) * min(width, length)


def _united(stack, length, rows):
    """int32 `[T, m]`: each neighbor in any of the layers once."""
    positions = ops.arange(rows.start, rows.stop, dtype="int32")
    lists = [
        ops.convert_to_numpy(pattern.neighbors(length, positions))
        for pattern in stack
    ]
    nobody = np.full((rows.stop - rows.start, 1), -1, "int32")
    neighbors = np.concatenate([*lists, nobody], axis=1)
    neighbors.sort(axis=1)
    is_repeated = neighbors[:, 1:] == neighbors[:, :-1]
    neighbors[:, 1:][is_repeated] = -1
    return neighbors
