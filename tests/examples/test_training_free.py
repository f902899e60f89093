"""The training-free example measures every pattern."""

import math

import pytest
from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

NAME = "studies/training_free/run"
SPARSE = (
    "SlidingWindow(6)",
    "Stochastic(6, neighborhood='block')",
    "Stochastic(6) | SlidingWindow(6)",
    "BlockRouted(2, 3)",
)


@pytest.fixture
def options(text_folder, tiny_preset):
    return (
        *("--preset", tiny_preset, "--text", text_folder),
        *("--length", "32", "--sequences", "2", "--patterns", *SPARSE),
        *("--max-new-tokens", "8", "--runs", "1"),
    )


@slow_where_compiled
def test_measures_every_pattern(options, tmp_path):
    run_to_the_end(NAME, *options, "--output", tmp_path)
    check_table(tmp_path / "table.md", SPARSE)
    samples = (tmp_path / "samples.txt").read_text("utf-8")
    assert samples.count("--- ") == 2 + len(SPARSE)


def test_measures_a_prompt(options, tmp_path):
    prompt = "def window_12(token):\n    return token + 12\n"
    run_to_the_end(
        NAME,
        *options,
        *("--patterns", "SlidingWindow(6)", "--output", tmp_path),
        *("--prompt", prompt),
    )
    check_table(tmp_path / "table.md", ["SlidingWindow(6)"])


@slow_where_compiled
def test_too_many_new_tokens_are_explained(options):
    done = run_example(NAME, *options, "--max-new-tokens", "32")
    assert done.returncode != 0
    assert "--max-new-tokens is expected" in done.stderr


def check_table(path, sparse):
    rows = table_rows(path)
    patterns = [row[0].replace("\\|", "|") for row in rows]
    assert patterns == ["Full()", *sparse]
    for row in rows:
        numbers = numbers_in(row[1:])
        assert len(numbers) >= 6
        assert all(math.isfinite(number) for number in numbers)
