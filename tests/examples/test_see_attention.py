"""What is told of a model's attention is what it computes with."""

import math

import pytest
from example_runs import TINY_MODEL
from example_runs import numbers_in
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

from examples.shared import small_model
from keras_sa import hub
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

NAME = "studies/see_attention/run"
GATED = [
    Stochastic(8) + SlidingWindow(8),
    GatedSum(SlidingWindow(4)),
    Full(),
]
LOCAL_MASS = 4  # its column
COLUMNS = 5  # of measures; gates come after


@pytest.fixture
def options(text_folder, tmp_path):
    return (
        *("--text", text_folder, "--length", "24", "--sequences", "2"),
        *("--window", "4", "--output", tmp_path / "seen"),
    )


@slow_where_compiled
def test_a_preset_comes_with_its_gates(options, tmp_path):
    causal_lm = small_model.build(**TINY_MODEL | {"num_layers": 3})
    hub.swap_attention(causal_lm, GATED, seed=0)
    hub.save_to_preset(causal_lm, tmp_path / "preset")
    printed = run_to_the_end(NAME, *options, "--preset", tmp_path / "preset")
    assert "AttentionSwap({0: Stochastic(8) + SlidingWindow(8)" in printed
    head, *rows = table_rows(tmp_path / "seen" / "table.md")
    rows, (alike, distances, *fractions) = rows[:3], rows[3:]
    assert head[-2:] == ["gate 1", "gate 2"]
    assert alike[0] == "all keys alike"
    assert numbers_in(alike)[1:3] == [1, 5.8]  # a quarter of 23
    assert distances[1:] == [
        "0",
        "1",
        "2 to 3",
        "4 to 7",
        "8 to 15",
        "16 to 23",
    ]
    for row in (rows, fractions):
        assert [cells[0] for cells in row] == ["0", "1", "2"]
    for row in fractions:
        assert sum(numbers_in(row)) == pytest.approx(1, abs=4e-3)
    assert numbers_in(fractions[1])[3:] == [0, 0, 0]
    check_measures(rows)
    # As they start: kernels of zeros.
    low, high = "0.119 (0.119 to 0.119)", "0.881 (0.881 to 0.881)"
    assert [row[-2:] for row in rows] == [[low, high], [high, ""], ["", ""]]
    local_mass = [numbers_in([row[LOCAL_MASS]])[0] for row in rows]
    assert local_mass[1] == 1  # the window of the layer
    assert local_mass[2] < local_mass[0] < 1
    for name in ("profile", "gates"):
        figure = tmp_path / "seen" / f"{name}.png"
        assert str(figure) in printed
        assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_any_other_preset_is_seen_as_it_is(options, tiny_preset, tmp_path):
    printed = run_to_the_end(NAME, *options, "--preset", tiny_preset)
    assert "its own attention" in printed
    head, row, *_ = table_rows(tmp_path / "seen" / "table.md")
    assert head[-1] == "total"
    check_measures([row])
    assert not (tmp_path / "seen" / "gates.png").exists()


def check_measures(rows):
    for row in rows:
        for cell in row[1 : 1 + COLUMNS]:
            mean, low, high = numbers_in([cell])
            assert math.isfinite(mean)
            assert low <= mean <= high
