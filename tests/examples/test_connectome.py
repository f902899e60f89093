"""Attentions beside a connectome."""

import pytest
from example_runs import run_study
from example_runs import table_by_name

from keras_sa import analysis
from keras_sa.analysis import undirected
from keras_sa.patterns import Stochastic

pytest.importorskip("matplotlib")
from examples.studies.connectome import run  # noqa: E402
from examples.studies.connectome.fly import FLY  # noqa: E402
from examples.studies.connectome.report import even_degree  # noqa: E402
from examples.studies.connectome.stacks import stacks_of_degree  # noqa: E402

LENGTH = 60  # of all, so that compiled backends compile little


@pytest.fixture
def study(capsys, tmp_path, monkeypatch):
    """Runs it: the rows of the table by their name, the text, the files."""

    def run_it(*options):
        output = tmp_path / "new"
        run_study(run, [*options, "--output", output], monkeypatch)
        text = (output / "table.md").read_text()
        assert text in capsys.readouterr().out
        files = sorted(path.name for path in output.iterdir())
        return table_by_name(text), text, files

    return run_it


def test_the_fly(study):
    rows, text, files = study("--length", LENGTH)
    assert list(rows) == [
        "sliding_window",
        "stochastic",
        "small_world",
        "fly, published",
    ]
    stack = stacks_of_degree(26)["stochastic"]
    measures = analysis.small_world_measures(stack, LENGTH)
    row = rows["stochastic"]
    assert float(row["sigma"]) == pytest.approx(measures.sigma, rel=1e-3)
    assert rows["fly, published"]["path length"] == "4.4"
    assert rows["fly, published"]["sigma"] == "141"
    assert rows["fly, published"]["clustering"] == ""
    assert "The fly has more neurons" in text
    assert files == ["pattern.png", "table.md"]


def test_an_edge_list(study, tmp_path):
    """A ring of 60 nodes and its next but one, some of them weak."""
    path = tmp_path / "edges.csv"
    lines = ["weight,to,from"]
    for node in range(60):
        lines += [f"5,{(node + 1) % 60},{node}", f"1,{(node + 2) % 60},{node}"]
    path.write_text("\n".join(lines) + "\n")
    columns = "--source-column from --target-column to --weight-column weight"
    options = ["--edge-list", path, *columns.split()]
    rows, _, _ = study(*options)
    row = rows["edges.csv"]
    assert (row["nodes"], row["degree"]) == ("60", "4")
    assert (row["clustering"], row["diameter"]) == ("0.5", "15")
    assert list(rows)[1:] == ["sliding_window", "stochastic", "small_world"]
    assert rows["sliding_window"]["nodes"] == "60"
    rows, _, _ = study(*options, "--min-weight", 2)
    assert rows["edges.csv"]["degree"] == "2"
    assert rows["edges.csv"]["diameter"] == "30"


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "no-file.csv"),
        ("from,to\n1,1\n", "no edges between nodes"),
        ("from,to\n1,2\n", "Received: 'source'"),
    ],
)
def test_edge_lists_without_a_graph(content, words, study, tmp_path):
    path = tmp_path / "no-file.csv"
    column = []
    if content is not None:
        path.write_text(content)
    if "Received" in words:
        column = ["--source-column", "source"]
    with pytest.raises(SystemExit, match=words):
        study("--edge-list", path, *column)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--min-weight 0", "--min-weight is not expected without --edge-list"),
        ("--length 26", "--length is expected to be above 26"),
        ("--edge-list x.csv --length 90", "--length is not expected with"),
    ],
)
def test_wrong_arguments(options, message, study, capsys):
    with pytest.raises(SystemExit) as error:
        study(*options.split())
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_the_nearest_degree_that_is_even():
    degrees = [even_degree(x) for x in (0.5, 4, 5.2, 26.0)]
    assert degrees == [4, 4, 6, 26]


def test_stacks_of_a_degree():
    stack = stacks_of_degree(26)["stochastic"]
    assert [x.pattern for x in stack] == [Stochastic(13), Stochastic(15)]
    for degree in (4, 6, 26):
        for stack in stacks_of_degree(degree, seed=5).values():
            found = analysis.small_world_measures(stack, 2000, num_sources=1)
            assert found.degree == pytest.approx(degree, rel=0.02)


def test_the_size_of_a_fly():
    """In less: a few paths only, at all 130,000 tokens."""
    assert FLY.degree == pytest.approx(26)
    stack = stacks_of_degree(26)["small_world"]
    graph = analysis.attention_graph(stack, FLY.num_neurons)
    paths = undirected.distances(undirected.undirected(graph), num_sources=8)
    assert paths.path_length.value == pytest.approx(4.6, abs=0.3)
