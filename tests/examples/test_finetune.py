"""The fine-tuning example trains, keeps what it trained, and loads it."""

import argparse
import json
import math

import keras
import pytest
from example_runs import numbers_in
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

from examples.finetune import tuning

NAME = "finetune/run"
PATTERN = "Stochastic(6) + SlidingWindow(6)"


@pytest.fixture
def options(text_folder, tiny_preset):
    return (
        *("--preset", tiny_preset, "--text", text_folder),
        *("--length", "32", "--pattern", PATTERN, "--rank", "2"),
        *("--steps", "4", "--sequences", "2", "--max-new-tokens", "8"),
    )


def check_output(folder, printed, pattern=PATTERN):
    assert "has the loss of the model" in printed
    rows = table_rows(folder / "table.md")
    assert len(rows) == 3
    assert all(math.isfinite(x) for row in rows for x in numbers_in(row))
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "sample.txt").read_text("utf-8")
    config = json.loads((folder / "preset" / "keras_sa.json").read_text())
    (saved,) = config["swap"]["pattern"].values()
    assert config["swap"]["decode"] == "pattern"
    assert repr(keras.saving.deserialize_keras_object(saved)) == pattern


@slow_where_compiled
def test_tunes_lora_weights_and_gates(options, tmp_path):
    printed = run_to_the_end(NAME, *options, "--output", tmp_path)
    check_output(tmp_path, printed)


@slow_where_compiled
def test_tunes_gates_alone(options, tmp_path):
    printed = run_to_the_end(
        NAME, *options, "--only-gates", "--output", tmp_path
    )
    check_output(tmp_path, printed)
    # A kernel of 16 features and a bias, for 2 gates of 2 heads.
    assert f"Fine-tuning {(16 + 1) * 2 * 2:,} parameters" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "SlidingWindow(6)",
        "Stochastic(6) | SlidingWindow(6) | GlobalKeys(first=2)",
    ],
)
def test_tunes_other_attentions(options, tmp_path, pattern):
    printed = run_to_the_end(
        NAME, *options, "--pattern", pattern, "--output", tmp_path
    )
    check_output(tmp_path, printed, pattern)


def test_missing_gates_are_explained():
    arguments = argparse.Namespace(pattern="Full()", only_gates=True)
    with pytest.raises(SystemExit, match="expects a --pattern with gates"):
        tuning.read_pattern(arguments)
