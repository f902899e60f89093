"""The recall example trains every attention once and goes on where it was."""

import json
import math

import pytest
from example_runs import numbers_in
from example_runs import run_to_the_end
from example_runs import slow_where_compiled
from example_runs import table_rows

NAME = "recall/run"
TINY = (
    *("--length", "24", "--short-steps", "0", "--steps", "2"),
    *("--tokens-per-batch", "96", "--num-examples", "50"),
    *("--num-layers", "1", "--hidden-dim", "16", "--visible-keys", "4"),
    *("--num-pairs", "3", "--num-queries", "2", "--buckets", "1", "8", "24"),
)


def entries_of(folder):
    return json.loads((folder / "runs.json").read_text())


def check_table(folder, attentions):
    rows = table_rows(folder / "table.md")
    assert [row[0] for row in rows] == list(attentions)
    for row in rows:
        assert all(math.isfinite(number) for number in numbers_in(row[2:]))
        assert row[0] == "full" or abs(float(row[2]) - 4) < 1  # the budget


@slow_where_compiled
# One test, so that runs are there to go on from.
def test_trains_reports_and_goes_on(tmp_path):
    options = (*TINY, "--output", tmp_path, "--seeds", "0", "--attentions")
    printed = run_to_the_end(NAME, *options, "full", "sliding_window")
    assert "sliding windows reach 3 tokens back. From 8 tokens on" in printed
    check_table(tmp_path, ["full", "sliding_window"])
    figure = tmp_path / "accuracy_by_distance.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    before = entries_of(tmp_path)

    random = ("full", "small_world")
    run_to_the_end(NAME, *options, *random)
    check_table(tmp_path, random)
    after = entries_of(tmp_path)
    assert after[:-1] == before
    assert after[-1]["run"]["attention"] == "small_world"

    # Other settings: runs of their own.
    run_to_the_end(NAME, *options, "full", "--short-steps", "1")
    entries = entries_of(tmp_path)
    assert entries[:-1] == after
    assert entries[-1]["settings"]["short_steps"] == 1


@pytest.mark.slow
def test_every_attention(tmp_path):
    run_to_the_end(NAME, *TINY, "--seeds", "0", "--output", tmp_path)
    check_table(
        tmp_path,
        (
            "full",
            "sliding_window",
            "stochastic",
            "small_world",
            "small_world_softmax",
            "block_routed",
        ),
    )
