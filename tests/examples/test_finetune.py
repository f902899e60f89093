"""The fine-tuning example trains, keeps what it trained, and loads it."""

import json
import math

import pytest
from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import table_rows

NAME = "finetune"


def options_of(text_folder, folder):
    return (
        *("--text", text_folder, "--length", "32", "--window", "6"),
        *("--steps", "4", "--sequences", "2", "--max-new-tokens", "8"),
        *("--small-model", folder / "small_model", "--minutes", "0.01"),
        *("--rank", "2"),
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


# One test, so that the small model is trained once.
def test_tunes_the_small_model_and_a_preset(text_folder, tmp_path):
    options = options_of(text_folder, tmp_path)
    output = tmp_path / "lora"
    printed = run_to_the_end(NAME, *options, "--output", output)
    check_output(output, printed, mode="small_world", merge="gate")

    output = tmp_path / "gates"
    preset = ("--preset", tmp_path / "small_model", "--only-gates")
    printed = run_to_the_end(NAME, *options, *preset, "--output", output)
    check_output(output, printed, mode="small_world", merge="gate")
    # Three layers; a kernel of 128 features and a bias, for 2 gates of 4 heads.
    assert f"Fine-tuning {3 * (128 + 1) * 2 * 4:,} parameters" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        {"mode": "stochastic"},
        {"mode": "sliding_window"},
        {"mode": "small_world", "merge": "softmax"},
    ],
)
def test_tunes_other_attentions(text_folder, tmp_path, pattern):
    options = options_of(text_folder, tmp_path)
    chosen = [word for k, v in pattern.items() for word in (f"--{k}", v)]
    printed = run_to_the_end(NAME, *options, *chosen, "--output", tmp_path)
    check_output(tmp_path, printed, **pattern)


def test_missing_gates_are_explained(text_folder, tmp_path):
    options = options_of(text_folder, tmp_path)
    done = run_example(NAME, *options, "--only-gates", "--mode", "stochastic")
    assert done.returncode != 0
    assert "--only-gates expects gates" in done.stderr
