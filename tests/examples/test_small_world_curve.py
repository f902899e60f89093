"""The small-world curve of attentions and of rewired rings."""

import networkx as nx
import numpy as np
import pytest
from example_runs import run_study
from example_runs import table_by_name

pytest.importorskip("matplotlib")
from examples.studies.small_world_curve import curves  # noqa: E402
from examples.studies.small_world_curve import run  # noqa: E402
from examples.studies.small_world_curve.plotting import plot  # noqa: E402


def test_small_world_curve():
    steps = []
    curve = curves.small_world_curve(
        600, 12, progress=lambda *step: steps.append(step)
    )
    assert steps == [(step, 7) for step in range(1, 8)]
    np.testing.assert_allclose(curve.fractions, np.arange(7) / 6)
    # One random window of 3 shortens paths at once; clusters stay.
    assert curve.path_length[1] < curve.path_length[0] / 5
    assert curve.clustering[1] > curve.clustering[0] / 2
    assert (np.diff(curve.clustering[:-1]) < 0).all()
    degrees = [measures.degree for measures in curve.measures]
    np.testing.assert_allclose(degrees, 12, rtol=0.03)
    # At the end it is no more a small world.
    assert curve.measures[-1].sigma == pytest.approx(1, abs=0.6)


def test_curve_of_rewired_rings():
    curve = curves.watts_strogatz_curve(300, 6, [0.0, 0.05, 1.0])
    ring = nx.watts_strogatz_graph(300, 6, 0.0)
    assert curve.clustering[0] == pytest.approx(nx.average_clustering(ring))
    assert curve.path_length[0] == pytest.approx(
        nx.average_shortest_path_length(ring)
    )
    assert curve.path_length[1] < curve.path_length[0] / 2
    assert curve.clustering[1] > curve.clustering[0] / 2
    assert curve.clustering[2] < 0.1


def test_small_world_curve_is_relative_to_the_lattice():
    curve = curves.small_world_curve(60, 4)
    rewired = curves.watts_strogatz_curve(60, 4, [0, 0.5])
    figure = plot(curve, rewired)
    (axes,) = figure.axes
    assert axes.get_title() == "60 tokens, 4 neighbors"
    assert axes.get_xlabel() == "fraction of shortcuts"
    assert axes.get_xscale() == "linear"
    lines = {line.get_label(): line.get_data() for line in axes.lines}
    for found, name in ((curve, "{}"), (rewired, "{}, rewired at random")):
        for label, values in (
            ("path length", found.path_length),
            ("clustering", found.clustering),
        ):
            x, y = lines[name.format(label)]
            np.testing.assert_array_equal(x, found.fractions)
            np.testing.assert_allclose(y, values / values[0])
    styles = {line.get_label(): line.get_linestyle() for line in axes.lines}
    assert styles["clustering, rewired at random"] == "--"
    assert styles["clustering"] != "--" != styles["path length"]


def test_the_study(tmp_path, monkeypatch):
    options = ["--length", 60, "--degree", 4, "--output", tmp_path]
    run_study(run, options, monkeypatch)
    rows = table_by_name((tmp_path / "table.md").read_text())
    assert list(rows) == ["0", "0.5", "1"]
    curve = curves.small_world_curve(60, 4)
    rewired = curves.watts_strogatz_curve(60, 4, curve.fractions)
    for column, values in (
        ("path length", curve.path_length),
        ("clustering", curve.clustering),
        ("path length, rewired", rewired.path_length),
        ("clustering, rewired", rewired.clustering),
    ):
        found = [float(row[column]) for row in rows.values()]
        assert found == pytest.approx(values.tolist(), rel=1e-3)
    assert (tmp_path / "small_world_curve.png").exists()


@pytest.mark.parametrize("degree", [2, 5, 30])
def test_wrong_degrees(degree, monkeypatch, capsys):
    options = ["--length", 30, "--degree", degree]
    with pytest.raises(SystemExit) as error:
        run_study(run, options, monkeypatch)
    assert error.value.code == 2
    message = "even integer from 4 and less than --length 30. Received: "
    assert f"{message}{degree}" in capsys.readouterr().err
