"""The recall example trains every attention once and goes on where it was."""

import json
import math

from example_runs import numbers_in
from example_runs import run_to_the_end
from example_runs import table_rows

ATTENTIONS = (
    "full",
    "sliding_window",
    "stochastic",
    "small_world",
    "small_world_softmax",
    "block_routed",
)
TINY = (
    *(
        "--length",
        "24",
        "--short-steps",
        "1",
        "--steps",
        "2",
        "--tokens-per-batch",
        "96",
    ),
    *("--num-layers", "1", "--hidden-dim", "16", "--visible-keys", "4"),
    *("--num-pairs", "3", "--num-queries", "2", "--num-examples", "50"),
    *("--buckets", "1", "8", "24"),
)


# One test, so that runs are there to go on from.
def test_trains_reports_and_goes_on(tmp_path):
    options = (*TINY, "--output", tmp_path)
    printed = run_to_the_end("recall", *options, "--seeds", "0")
    rows = table_rows(tmp_path / "table.md")
    assert [row[0] for row in rows] == list(ATTENTIONS)
    for row in rows:
        assert all(math.isfinite(number) for number in numbers_in(row[2:]))
    for row in rows[1:]:
        assert abs(float(row[2]) - 4) < 1  # near the budget
    assert "sliding windows reach 3 tokens back. From 8 tokens on" in printed
    figure = tmp_path / "accuracy_by_distance.png"
    assert figure.read_bytes().startswith(b"\x89PNG")

    before = json.loads((tmp_path / "runs.json").read_text())
    assert len(before) == len(ATTENTIONS)
    two = ("--attentions", "full", "stochastic", "--seeds", "0", "1")
    run_to_the_end("recall", *options, *two)
    after = json.loads((tmp_path / "runs.json").read_text())
    assert after[: len(before)] == before
    added = [(e["run"]["attention"], e["run"]["seed"]) for e in after[6:]]
    assert added == [("full", 1), ("stochastic", 1)]
    assert [row[0] for row in table_rows(tmp_path / "table.md")] == [
        "full",
        "stochastic",
    ]

    # Other settings: runs of their own.
    run_to_the_end("recall", *options, *two[:2], "--seeds", "0", "--steps", "3")
    entries = json.loads((tmp_path / "runs.json").read_text())
    assert len(entries) == len(after) + 1
    assert entries[-1]["settings"]["steps"] == 3
