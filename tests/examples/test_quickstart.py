"""The quickstart runs from one command and writes what it promises."""

import math

import pytest
from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import table_rows

ATTENTIONS = (
    "none (byte frequencies)",
    "full",
    "sliding window",
    "stochastic, window",
    "stochastic, block",
    "small world, one softmax",
    "MoBA, top 3 blocks",
    "small world, gated",
)


def options_of(text_folder, output):
    return (
        *("--text", text_folder, "--output", output),
        *("--minutes", "0.01", "--length", "32", "--visible-keys", "6"),
        *("--permutations", "2"),
    )


def run_quickstart(text_folder, output, *options):
    return run_to_the_end(
        "quickstart", *options_of(text_folder, output), *options
    )


# One test: its run takes longest.
def test_writes_what_it_promises(text_folder, tmp_path):
    printed = run_quickstart(text_folder, tmp_path)
    for stage in range(1, 7):
        assert f"[{stage}/6" in printed
    for path in tmp_path.iterdir():
        assert str(path) in printed
    check_table(table_rows(tmp_path / "table.md"))
    figure = tmp_path / "loss_against_visible_keys.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "full attention" in (tmp_path / "samples.txt").read_text("utf-8")


def check_table(rows):
    assert {row[0] for row in rows} == set(ATTENTIONS)
    assert len(rows) == len(ATTENTIONS) + 1  # the sliding window, fine-tuned
    for row in rows:
        numbers = numbers_in(row[2:])
        assert len(numbers) >= 2
        assert all(math.isfinite(number) for number in numbers)
    for row in rows[2:]:
        assert abs(float(row[2]) - 6) < 1  # near the budget


def test_unusable_text_is_explained(tmp_path):
    done = run_example("quickstart", *options_of(tmp_path, tmp_path / "output"))
    assert done.returncode != 0
    assert "At least two text files" in done.stderr


@pytest.mark.slow
def test_the_seed_decides_the_table(text_folder, tmp_path, backend):
    if backend != "jax":
        pytest.skip("Threads add in any order on torch and TensorFlow.")
    tables = []
    for run, seed in enumerate((0, 0, 1)):
        output = tmp_path / str(run)
        run_quickstart(text_folder, output, "--seed", seed)
        tables.append(table_rows(output / "table.md"))
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]
