"""The training-free example measures every attention and keeps its model."""

import math

from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

NAME = "training_free_inference"
SPARSE = (
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world",
    "block_routed",
)


def options_of(text_folder, folder):
    return (
        *("--text", text_folder, "--small-model", folder / "small_model"),
        *("--minutes", "0.01", "--length", "32", "--windows", "6"),
        *("--sequences", "2", "--max-new-tokens", "8", "--runs", "1"),
    )


@slow_where_compiled
# One test, so that the small model is trained once.
def test_measures_every_attention_and_trains_once(text_folder, tmp_path):
    options = options_of(text_folder, tmp_path)
    output = tmp_path / "all_modes"
    printed = run_to_the_end(NAME, *options, "--output", output)
    assert "  training" in printed
    check_table(output / "table.md", SPARSE)
    samples = (output / "samples.txt").read_text("utf-8")
    assert samples.count("--- ") == 2 + len(SPARSE)

    output = tmp_path / "prompt"
    printed = run_to_the_end(
        NAME,
        *options,
        *("--modes", "sliding_window", "--output", output),
        *("--prompt", "def window_12(token):\n    return token + 12\n"),
    )
    assert "  training" not in printed
    check_table(output / "table.md", ["sliding_window"])

    done = run_example(NAME, *options, "--max-new-tokens", "32")
    assert done.returncode != 0
    assert "--max-new-tokens is expected" in done.stderr


def check_table(path, sparse):
    rows = table_rows(path)
    assert [row[0] for row in rows] == ["full", *sparse]
    for row in rows:
        numbers = numbers_in(row[2:])
        assert len(numbers) >= 6
        assert all(math.isfinite(number) for number in numbers)
