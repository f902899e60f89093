"""Graphs from files of edges, such as a connectome's."""

import pathlib

import numpy as np
import scipy.sparse

_SUFFIXES = (".csv", ".tsv", ".parquet", ".feather")
_COMPRESSIONS = (".gz", ".bz2")


def load_edge_list(
    path, source=None, target=None, weight=None, min_weight=None
):
    """Reads a directed graph from a table with a row for each edge.

    Rows of the same two nodes are one edge: their weights are added. Edges to
    the node itself stay; the measures leave them out.

    Args:
        path: a `.csv` or `.tsv` file with a header, also `.gz` or `.bz2`, or a
            `.parquet` or `.feather` file.
        source: name of the column of the nodes that edges start from. Default:
            the first.
        target: name of the column of the nodes that they lead to. Default: the
            second.
        weight: name of a column of numbers, such as counts of synapses.
        min_weight: edges of less weight are left out; needs `weight`.

    Returns:
        `(graph, nodes)`: `scipy.sparse.csr_array` `[n, n]` of bool, and the
        names of its rows `[n]`, in order. All nodes of the file are there,
        also those whose edges were left out.

    Raises:
        ValueError: for another suffix, a column that is not there, missing
            values, or `min_weight` without `weight`.
    """
    if min_weight is not None and weight is None:
        raise ValueError(
            "`min_weight` is expected together with the name of a column, "
            f"`weight`. Received: min_weight={min_weight}, weight=None"
        )
    table = _read(pathlib.Path(path))
    names = table.column_names
    if len(names) < 2:
        raise ValueError(
            f"Two columns are expected in {str(path)!r}. Received: {names}"
        )
    ends = [
        _column(table, names[0] if source is None else source, path),
        _column(table, names[1] if target is None else target, path),
    ]
    nodes, place = np.unique(np.concatenate(ends), return_inverse=True)
    weights = (
        np.ones(len(ends[0]))
        if weight is None
        else _column(table, weight, path).astype("float64")
    )
    shape = (len(nodes), len(nodes))
    graph = scipy.sparse.csr_array(
        (weights, tuple(place.reshape(2, -1))), shape
    )
    graph.sum_duplicates()
    is_edge = np.ones(graph.nnz, bool)
    if min_weight is not None:
        is_edge = graph.data >= min_weight
    graph = scipy.sparse.csr_array(
        (is_edge, graph.indices, graph.indptr), shape
    )
    graph.eliminate_zeros()
    return graph, nodes


def _read(path):
    kind = path.suffix
    if kind in _COMPRESSIONS:
        kind = path.with_suffix("").suffix
    if kind not in _SUFFIXES or (
        path.suffix in _COMPRESSIONS and kind not in (".csv", ".tsv")
    ):
        raise ValueError(
            f"`path` is expected to end in one of {_SUFFIXES}, tables of text "
            f"also in {_COMPRESSIONS}. Received: path={str(path)!r}"
        )
    if kind == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    if kind == ".feather":
        from pyarrow import feather

        return feather.read_table(path)
    from pyarrow import csv

    delimiter = "\t" if kind == ".tsv" else ","
    options = csv.ParseOptions(delimiter=delimiter)
    return csv.read_csv(path, parse_options=options)


def _column(table, name, path):
    if name not in table.column_names:
        raise ValueError(
            f"A column of {str(path)!r} is expected: one of "
            f"{table.column_names}. Received: {name!r}"
        )
    column = table.column(name)
    if column.null_count:
        raise ValueError(
            f"Column {name!r} of {str(path)!r} is expected to have a value in "
            f"every row. Received: {column.null_count} rows without one"
        )
    return column.to_numpy()
