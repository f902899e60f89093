"""The sweep measures every attention, keeps each run and judges fairly."""

import csv
import json
import math
import types

import keras_hub
import numpy as np
import pytest
from example_runs import numbers_in
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

from examples.shared import byte_text
from examples.shared import reports
from examples.shared import small_model
from examples.shared.attentions import ATTENTIONS
from examples.shared.attentions import TRAINING_FREE
from examples.shared.attentions import pattern_at
from examples.shared.kept_runs import Run
from examples.studies.sweep import report
from keras_sa import hub
from keras_sa.evaluation import evaluate_documents
from keras_sa.patterns import Full

NAME = "studies/sweep/run"
LENGTH, SEQUENCES = 16, 4
BUDGET, COVERING = 4, 100


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """A model whose attention matters: it has large random weights."""
    causal_lm = small_model.build(
        num_layers=2, head_dim=8, hidden_dim=16, intermediate_dim=16
    )
    for weight in causal_lm.weights:
        weight.assign(4 * weight)
    folder = tmp_path_factory.mktemp("preset")
    causal_lm.save_to_preset(str(folder))
    return folder


def entries_of(folder):
    return json.loads((folder / "runs.json").read_text())


def losses_of(folder):
    """`{(attention, budget, seed): its losses}` of all that was kept."""
    return {
        (run["attention"], run["budget"], run["seed"]): (
            run["loss"],
            run["last_quarter_loss"],
        )
        for run in (entry["run"] for entry in entries_of(folder))
    }


@slow_where_compiled
# One test, so that runs are there to go on from.
def test_measures_reports_and_goes_on(preset, text_folder, tmp_path):
    options = (
        *("--preset", preset, "--text", text_folder, "--output", tmp_path),
        *("--length", LENGTH, "--sequences", SEQUENCES),
        *("--visible-keys", BUDGET, COVERING),
    )
    run_to_the_end(NAME, *options, "--seeds", "0", "1", "1")
    sparse = [name for name in TRAINING_FREE if name != "full"]
    check_table(tmp_path, ["full", *sparse, *sparse])
    before, losses = entries_of(tmp_path), losses_of(tmp_path)
    check_losses(losses, sparse)
    check_against_evaluation(losses, preset, text_folder)

    names = ("--attentions", "sliding_window", "stochastic")
    run_to_the_end(NAME, *options, *names, "--seeds", "0", "1", "2")
    check_table(tmp_path, ["full", *2 * names[1:]])
    after = entries_of(tmp_path)
    assert after[: len(before)] == before
    assert [
        (run["attention"], run["budget"], run["seed"])
        for run in (entry["run"] for entry in after[len(before) :])
    ] == [("stochastic", BUDGET, 2), ("stochastic", COVERING, 2)]


def check_table(folder, attentions):
    rows = table_rows(folder / "table.md")
    assert [row[0] for row in rows] == list(attentions)
    for row in rows:
        numbers = numbers_in(row[2:])
        assert len(numbers) >= 3
        assert all(math.isfinite(number) for number in numbers)
    with (folder / "runs.csv").open() as file:
        values = list(csv.DictReader(file))
    groups = {(row["attention"], row["budget"]) for row in values}
    assert len(groups) == len(rows)
    figure = folder / "loss_against_visible_keys.png"
    assert figure.read_bytes().startswith(b"\x89PNG")


def check_losses(losses, sparse):
    """What attends to everything is full attention; seeds differ."""
    full = losses["full", None, None]
    for (_, budget, _), of_run in losses.items():
        if budget == COVERING:
            assert of_run == pytest.approx(full, rel=1e-5)
    for name in sparse:
        seeds = [s for a, b, s in losses if (a, b) == (name, BUDGET)]
        is_random = name not in ("sliding_window", "block_routed")
        assert seeds == ([0, 1] if is_random else [None])
        narrow = [losses[name, BUDGET, seed][0] for seed in seeds]
        assert len({round(loss, 5) for loss in [*narrow, full[0]]}) == 1 + len(
            seeds
        )


def check_against_evaluation(losses, preset, text_folder):
    """With a new swap, and documents that are cut here."""
    causal_lm = keras_hub.models.CausalLM.from_preset(str(preset))
    _, text = byte_text.read_texts(text_folder)
    starts = np.linspace(0, len(text) - LENGTH - 1, SEQUENCES, dtype=int)
    documents = [text[i : i + LENGTH + 1].astype("int32") for i in starts]
    pattern = pattern_at("stochastic", BUDGET, LENGTH)
    with hub.swap_attention(causal_lm, pattern, seed=1):
        result = evaluate_documents(causal_lm, documents, LENGTH)
    assert losses["stochastic", BUDGET, 1] == pytest.approx(
        (result.loss, result.by_context[-1].loss), rel=1e-6
    )


def test_gates_are_refused():
    done = run_example(NAME, "--attentions", "full", "two_windows")
    assert done.returncode != 0
    assert "to have no gates" in done.stderr
    assert "Received: two_windows" in done.stderr


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_has_gates_says_so(name):
    pattern = pattern_at(name, BUDGET, LENGTH)
    assert ATTENTIONS[name].gated == ("gates" in pattern.needs())


def runs_with(stochastic_losses):
    """Runs at 8 and 16 keys; the sliding window has losses of 2 and 1.5."""

    def run(attention, budget, seed, loss):
        keys = budget or 32
        measured = dict.fromkeys(report.MEASURES, loss) | {"num_tokens": 99}
        return Run(attention, seed, Full(), keys, 1, measured, budget)

    return [
        run("full", None, None, 1.0),
        run("sliding_window", 8, None, 2.0),
        run("sliding_window", 16, None, 1.5),
        *[
            run("stochastic", budget, seed, loss)
            for budget, losses in stochastic_losses.items()
            for seed, loss in enumerate(losses)
        ],
    ]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        (
            {8: [1.8, 1.9], 16: [1.6, 1.7]},
            [
                "lower than that of the sliding window at 8 (-0.1500 ± 0.0707)",
                "higher than that of the sliding window at 16 (+0.1500",
                "holds, of 8, 16 visible keys, at 8 in the whole context",
                "at 8: stochastic (1.8500); at 16: sliding_window (1.5000)",
                "loss changes by -0.5000 in the whole context",
            ],
        ),
        (
            {8: [1.9, 2.2], 16: [1.501, 1.501]},
            [
                "equal to that of the sliding window at 8",
                "at none in the whole",
            ],
        ),
    ],
)
def test_conclusions_follow_the_numbers(losses, told):
    full, *points = report.points_of(runs_with(losses))
    concluded = report.conclude(full, points)
    for sentence in told:
        assert sentence in concluded


def test_full_attention_alone_is_reported(tmp_path):
    arguments = types.SimpleNamespace(output=tmp_path, length=32, seeds=[0])
    paths = report.write(arguments, runs_with({})[:1])
    assert [row[0] for row in table_rows(paths[0])] == ["full"]
    assert "nothing to compare with" in paths[0].read_text()
    assert all(path.stat().st_size for path in paths)


def test_spread_is_over_seeds():
    values = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_allclose(reports.spread(values), [math.sqrt(2), 0])
    np.testing.assert_array_equal(reports.spread(values[:1]), [0, 0])
