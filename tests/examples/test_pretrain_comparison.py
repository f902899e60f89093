"""The comparison makes every run once and tells what their numbers say."""

import csv
import dataclasses
import shlex

import numpy as np
import pytest
from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

from examples.pretrain import comparison_report
from examples.shared.attentions import pattern_at
from keras_sa.patterns import Pattern

NAME = "pretrain/compare"


def options_of(text_folder, output):
    return (
        *("--text", text_folder, "--output", output, "--visible-keys", "6"),
        *("--length", "32", "--layers", "2", "--steps", "2", "--log-every"),
        *("1", "--held-out-sequences", "4", "--seeds", "0", "--jobs", "2"),
    )


@slow_where_compiled
# One test, so that runs are there to go on from.
def test_makes_every_run_once(text_folder, tmp_path):
    options = (*options_of(text_folder, tmp_path), "--attentions")
    printed = run_to_the_end(NAME, *options, "small_world")
    assert "1 runs, 0 of them finished before" in printed
    both = ("sliding_window", "small_world")
    printed = run_to_the_end(NAME, *options, *both)
    assert "2 runs, 1 of them finished before" in printed

    with (tmp_path / "runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    assert [run["attention"] for run in runs] == list(both)
    told = numbers_in(table_rows(tmp_path / "table.md")[0][3:4])
    assert told == [pytest.approx(float(runs[0]["loss"]), abs=1e-4)]
    # What is written down is the run.
    script, *words = shlex.split(runs[1]["command"])[1:]
    assert script.endswith("pretrain/run.py")
    pattern = words[words.index("--pattern") + 1]
    assert pattern == repr(pattern_at("small_world", 6, 32))
    figure = tmp_path / "loss_by_attention.png"
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, message",
    [
        (("--seed", "1"), "--seed is expected not to be given"),
        (("--jobs", "0"), "--jobs is expected to be at least 1"),
        # Of run.py, which the first run tells.
        (("--steps", "0"), "--steps is expected to be at least 1"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, options, message):
    done = run_example(
        NAME, "--attentions", "full", *options, "--output", tmp_path / "runs"
    )
    assert done.returncode != 0
    assert message in done.stderr


# --- report


@dataclasses.dataclass
class Finished:
    attention: str
    seed: int
    loss: float
    pattern: Pattern
    gates: list = dataclasses.field(default_factory=list)

    def summary(self):
        gates = {"gates_by_layer": self.gates} if self.gates else {}
        return {
            "steps": 10,
            "tokens": 320,
            "held_out_tokens": 64,
            "parameters": 1000,
            "seconds_of_training": 2.0,
            "held_out_loss": self.loss,
            "held_out_loss_by_quarter_of_context": [3, 3, 3, 2 * self.loss],
            **gates,
        }


def results_of(**losses):
    """Of attentions by name, with a loss for each seed."""
    runs = [
        Finished(name, seed, loss, pattern_at(name, 4, 8))
        for name, its_losses in losses.items()
        for seed, loss in enumerate(its_losses)
    ]
    return runs, comparison_report.Results(runs, length=8)


def test_losses_are_compared_seed_by_seed():
    _, results = results_of(
        full=[1.0, 2.0], sliding_window=[1.5, 2.25], small_world=[1.25, 2.5]
    )
    row = comparison_report.tabulate(results).splitlines()[-1]
    mean, deviation, above, its_deviation = numbers_in(row.split("|")[4:6])
    assert (mean, above) == (1.875, 0.375)
    assert deviation == pytest.approx(np.std([1.25, 2.5], ddof=1), abs=1e-4)
    assert its_deviation == pytest.approx(0.1768, abs=1e-4)


def test_questions_are_answered_by_the_seeds():
    _, results = results_of(sliding_window=[1.5, 2.25], small_world=[1.25, 2.5])
    *_, row = comparison_report.answer(results).splitlines()
    assert "+0.0000 ± 0.3536" in row  # -0.25, +0.25
    assert "1 of 2, 1 of 2 seeds" in row
    _, alone = results_of(sliding_window=[1.5])
    assert comparison_report.answer(alone) == ""


def test_gates_are_means_over_seeds():
    runs, results = results_of(small_world=[1.0, 1.0])
    runs[0].gates, runs[1].gates = [[0.2, 0.6]], [[0.4, 0.8]]
    results = comparison_report.Results(runs, length=8)
    table = comparison_report.tabulate_gates(results)
    assert table.endswith("| small_world | 0.30 / 0.70 | 0.30 / 0.70 |")
    _, without = results_of(full=[1.0])
    assert comparison_report.tabulate_gates(without) == ""
