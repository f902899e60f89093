"""The quickstart runs from one command and writes what it promises."""

import math

import pytest
from example_runs import numbers_in
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

from examples.quickstart import report
from examples.quickstart.report import Result
from keras_sa.patterns import Full

NAME = "quickstart/run"
COMPARED = (
    "none (token frequencies)",
    "full",
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world_softmax",
    "block_routed",
)
FINE_TUNED = ("full", "sliding_window", "small_world")


@pytest.fixture
def options(text_folder, tiny_preset):
    return (
        *("--preset", tiny_preset, "--text", text_folder),
        *("--length", "32", "--visible-keys", "6"),
        *("--steps", "2", "--sequences", "8"),
    )


@slow_where_compiled
# One test: its run takes longest.
def test_writes_what_it_promises(options, tmp_path):
    printed = run_to_the_end(NAME, *options, "--output", tmp_path)
    for stage in range(1, 6):
        assert f"[{stage}/5" in printed
    for path in tmp_path.iterdir():
        assert str(path) in printed
    check_table(table_rows(tmp_path / "table.md"))
    figure = tmp_path / "loss_against_visible_keys.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    samples = (tmp_path / "samples.txt").read_text("utf-8")
    assert samples.count("--- prompt read by") == 2


def check_table(rows):
    assert [row[0] for row in rows] == [*COMPARED, *FINE_TUNED]
    for row in rows:
        numbers = numbers_in(row[2:])
        assert numbers
        assert all(math.isfinite(number) for number in numbers)
        if row[0] not in ("full", COMPARED[0]):
            assert abs(float(row[2]) - 6) < 1  # near the budget
    for *_, before, after, change in rows[len(COMPARED) :]:
        assert before != after
        assert float(change) == pytest.approx(
            mean_of(after) - mean_of(before), abs=2e-4
        )


def mean_of(cell):
    return float(cell.split(" ± ")[0])


def result(name, budget, *losses):
    return Result(name, budget, Full(), budget, list(losses))


def test_conclusions_follow_the_numbers():
    full = result("full", 256, 1.5)
    sparse = [
        result("sliding_window", 16, 2.0),
        result("stochastic", 16, 2.1),
        result("block_routed", 16, 1.9),
        result("sliding_window", 32, 1.8),
        result("stochastic", 32, 1.9, 1.5),
        result("block_routed", 32, 1.795),
    ]
    tuned = [
        (r, result(r.name, 32, r.mean - gain))
        for r, gain in ((full, 0.1), (sparse[3], 0.2), (sparse[4], 0.2))
    ]
    told = report.conclude(full, sparse, tuned)
    assert "stochastic: an equal loss at 32; a higher loss at 16 keys" in told
    assert "block_routed: a lower loss at 16; an equal loss at 32 keys" in told
    assert "changes by -0.3000" in told
    assert "has a lower loss: 1.5000 against 1.6000" in told
    assert "Full attention gets to 1.4000" in told


@pytest.mark.slow
def test_the_seed_decides_the_table(options, tmp_path, backend):
    if backend != "jax":
        pytest.skip("Threads add in any order on torch and TensorFlow.")
    tables = []
    for run, seed in enumerate((0, 0, 1)):
        output = tmp_path / str(run)
        run_to_the_end(NAME, *options, "--output", output, "--seed", seed)
        tables.append(table_rows(output / "table.md"))
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]
