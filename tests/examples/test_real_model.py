"""Patterns in a pretrained model, from one command, and again after a stop."""

import json

import pytest
from example_runs import ROOT
from example_runs import run_example
from example_runs import run_to_the_end
from example_runs import table_rows

from examples.studies.real_model.asking import Answers
from examples.studies.real_model.asking import side_by_side
from examples.studies.real_model.run import FEW_SHOT
from keras_sa.evaluation import ChosenPatterns
from keras_sa.evaluation import PatternComparison
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalQueries

NAME = "studies/real_model/run"
KINDS = 5 * 4 + 1


@pytest.fixture
def options(text_folder, tiny_preset, tmp_path):
    return (
        *("--preset", tiny_preset, "--text", text_folder),
        *("--length", "48", "--documents", "2", "--visible-keys", "8"),
        *("--first", "2", "--last", "6", "--rounds", "1"),
        *("--output", tmp_path / "real_model"),
    )


def test_compares_patterns_and_goes_on(options, tmp_path):
    printed = run_to_the_end(NAME, *options)
    assert "to go on after a stop: python " in printed
    folder = tmp_path / "real_model"
    rows = table_rows(folder / "comparison.md")
    assert len(rows) == 1 + KINDS and rows[0][0] == "full"
    comparison = PatternComparison.load(folder / "comparison.json")
    for name in ("sliding", "small world 3:1", "block routed"):
        name = f"{name} at 8"
        assert abs(comparison[name].visible_keys - 8) < 2
    # The tiny model has one layer, which is the one that stays full, if any.
    swap = json.dumps(comparison["stochastic at 8, first, last"].swap)
    assert json.dumps(GlobalQueries(last=6).get_config()) in swap
    assert (folder / "comparison.png").is_file()
    again = run_to_the_end(NAME, *options)
    assert again.count("visible keys, prefill") == 1  # of full attention
    assert table_rows(folder / "comparison.md") == rows


def test_chooses_patterns(options, tmp_path):
    run_to_the_end(NAME, *options, "--choose", "9")
    chosen = ChosenPatterns.load(tmp_path / "real_model" / "chosen.json")
    assert list(chosen.patterns) == [0] and chosen.patterns[0] != Full()
    text = (tmp_path / "real_model" / "chosen.md").read_text()
    assert "1 of 1 layers have a pattern" in text


def test_the_plan_that_is_kept_is_the_one_of_the_docs():
    folder = ROOT / "examples" / "studies" / "real_model" / "kept"
    chosen = ChosenPatterns.load(folder / "smollm2_chosen.json")
    assert len(chosen.patterns) == 29 and 8 not in chosen.patterns
    page = (ROOT / "docs" / "real_models.md").read_text()
    assert str(chosen).splitlines()[-1] in page


def test_the_answers_that_are_kept_are_those_of_the_docs():
    folder = ROOT / "examples" / "studies" / "real_model" / "kept"
    answers = {
        task: Answers.load(folder / f"few_shot_{task}.json")
        for task in FEW_SHOT
    }
    assert {x.settings["prompts"] for x in answers.values()} == {100}
    page = (ROOT / "docs" / "real_models.md").read_text()
    assert side_by_side(answers) in page
    assert str(Answers.load(folder / "passkey_1024.json")) in page


def test_asks(options, tmp_path):
    tasks = ("passkey", "capitals")
    options = (*options, "--ask", *tasks, "--prompts", "2", "--length", "300")
    options = (*options, "--batch-size", "2", "--visible-keys", "8", "12")
    options = (*options, "--kinds", "sliding", "--variants", "first", "full")
    printed = run_to_the_end(NAME, *options)
    folder = tmp_path / "real_model"
    names = ["full"]
    for budget in (8, 12):
        names.append(f"sliding at {budget}, first")
        names.append(f"sliding at {budget}, first, last, full")
    together = table_rows(folder / "answers.md")
    for column, task in enumerate(tasks, start=1):
        rows = table_rows(folder / f"{task}.md")
        assert [row[0] for row in rows] == names and len(rows[0]) == 6
        right = [(row[0], row[2]) for row in rows]
        assert right == [(row[0], row[column]) for row in together]
    assert printed.count("of 2 right") == len(names) * len(tasks)


def test_too_few_documents_are_explained(options):
    done = run_example(NAME, *options, "--documents", "99")
    assert done.returncode != 0
    assert "--documents 99" in done.stderr and "Received: " in done.stderr
