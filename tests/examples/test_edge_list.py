"""Edge lists in every form."""

import gzip

import numpy as np
import pytest

from examples.studies.connectome.edge_list import load_edge_list
from keras_sa import analysis

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import feather  # noqa: E402
from pyarrow import parquet  # noqa: E402

ROWS = "pre,post,region,count\n70,20,a,3\n70,20,b,4\n20,90,a,9\n90,90,a,5\n"


def table():
    return pyarrow.table(
        {
            "pre": [70, 70, 20, 90],
            "post": [20, 20, 90, 90],
            "region": ["a", "b", "a", "a"],
            "count": [3, 4, 9, 5],
        }
    )


def write(path):
    if path.suffix == ".parquet":
        parquet.write_table(table(), path)
    elif path.suffix == ".feather":
        feather.write_feather(table(), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(ROWS.encode()))
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        path.write_text(ROWS.replace(",", separator))
    return path


@pytest.mark.parametrize(
    "name", ["a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.feather"]
)
def test_formats(name, tmp_path):
    graph, nodes = load_edge_list(write(tmp_path / name))
    assert nodes.tolist() == [20, 70, 90]
    np.testing.assert_array_equal(
        graph.toarray(), [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    )
    assert graph.dtype == bool


def test_weights_of_a_pair_are_added(tmp_path):
    path = write(tmp_path / "a.csv")
    graph, nodes = load_edge_list(path, weight="count", min_weight=7)
    np.testing.assert_array_equal(
        graph.toarray(), [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    )
    assert graph.nnz == 2 and len(nodes) == 3


def test_columns_by_name_may_hold_words(tmp_path):
    path = write(tmp_path / "a.csv")
    path.write_text("n,to,from\n1,x,y\n2,z,x\n")
    graph, nodes = load_edge_list(path, source="from", target="to")
    assert nodes.tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(
        graph.toarray(), [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    )


def test_large_names_are_kept(tmp_path):
    """A neuron of FlyWire has a name of 60 bits."""
    path = tmp_path / "a.csv"
    path.write_text("pre,post\n720575940625363947,720575940625363946\n")
    _, nodes = load_edge_list(path)
    assert nodes.tolist() == [720575940625363946, 720575940625363947]


def test_measures_of_an_edge_list(tmp_path):
    graph, _ = load_edge_list(write(tmp_path / "a.csv"))
    found = analysis.small_world_measures(graph)
    assert found.num_edges == 2
    assert found.path_length == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("a.txt", {}, "end in one of.*a.txt"),
        ("a.parquet.gz", {}, "end in one of.*a.parquet.gz"),
        ("a.csv", {"min_weight": 3}, "`weight`. Received: min_weight=3"),
        ("a.csv", {"source": "axon"}, "'pre', 'post'.*Received: 'axon'"),
        ("a.csv", {"weight": "n"}, "Received: 'n'"),
    ],
)
def test_bad_arguments(name, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_edge_list(write(tmp_path / name), **options)


@pytest.mark.parametrize(
    "text, message",
    [
        ("pre\n1\n", "Two columns.*Received: \\['pre'\\]"),
        ("pre,post\n1,2\n,3\n", "1 rows without"),
    ],
)
def test_bad_tables(text, message, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_edge_list(path)
