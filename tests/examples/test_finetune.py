"""The fine-tuning example trains, keeps what it trained, and loads it."""

import json
import math

import pytest
from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

NAME = "finetune/run"


@pytest.fixture
def options(text_folder, tiny_preset):
    return (
        *("--preset", tiny_preset, "--text", text_folder),
        *("--length", "32", "--window", "6", "--rank", "2"),
        *("--steps", "4", "--sequences", "2", "--max-new-tokens", "8"),
    )


def check_output(folder, printed, **pattern):
    assert "has the loss of the model" in printed
    rows = table_rows(folder / "table.md")
    assert len(rows) == 3
    assert all(math.isfinite(x) for row in rows for x in numbers_in(row))
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "sample.txt").read_text("utf-8")
    config = json.loads((folder / "preset" / "keras_sa.json").read_text())
    (saved,) = config["swap"]["mode"]
    assert {**saved, **pattern, "decode": "window"} == saved


def test_tunes_lora_weights_and_gates(options, tmp_path):
    printed = run_to_the_end(NAME, *options, "--output", tmp_path)
    check_output(tmp_path, printed, mode="small_world", merge="gate")


@slow_where_compiled
def test_tunes_gates_alone(options, tmp_path):
    printed = run_to_the_end(
        NAME, *options, "--only-gates", "--output", tmp_path
    )
    check_output(tmp_path, printed, mode="small_world", merge="gate")
    # A kernel of 16 features and a bias, for 2 gates of 2 heads.
    assert f"Fine-tuning {(16 + 1) * 2 * 2:,} parameters" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        {"mode": "stochastic"},
        {"mode": "sliding_window"},
        {"mode": "small_world", "merge": "softmax"},
    ],
)
def test_tunes_other_attentions(options, tmp_path, pattern):
    chosen = [word for k, v in pattern.items() for word in (f"--{k}", v)]
    printed = run_to_the_end(NAME, *options, *chosen, "--output", tmp_path)
    check_output(tmp_path, printed, **pattern)


def test_missing_gates_are_explained(options):
    done = run_example(NAME, *options, "--only-gates", "--mode", "stochastic")
    assert done.returncode != 0
    assert "--only-gates expects gates" in done.stderr
