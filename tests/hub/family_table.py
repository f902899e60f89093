"""Writes docs/families.md from a run of tests/hub/test_families.py.

    KERAS_BACKEND=torch python -m tests.hub.family_table

Every cell of the table is the outcome of the tests that are marked with its
column.
"""

import collections
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "docs" / "families.md"
HEADER = """# Families of decoders

What of `keras_sa.hub` is tested for each family of KerasHub's decoders. Made by
`KERAS_BACKEND=torch python -m tests.hub.family_table` from the outcomes of
`tests/hub/test_families.py`, with tiny models of random weights. The first
column is tested on JAX, PyTorch and TensorFlow for every family; the others for
every family on PyTorch, and for one of each kind on the others.

- **training-free**: patterns that cover everything change no logit and no
  greedy token, small ones do change logits, `restore` gives the model back
  bit for bit, and a prompt generates the same alone and with more room.
- **pattern decode**: `decode="pattern"` generates what the forward pass over
  the whole sequence says, token for token. (Of Qwen3.5, models without linear
  attention: with it, KerasHub's own cached steps differ from its forward pass.)
- **gates**: a gated sum of patterns, with gates alone in training.
- **LoRA**: gates and LoRA weights in training.
- **int8**: a swap of a quantized model.
- **save and load**: `save_to_preset` and `from_preset`, and KerasHub's own
  `from_preset` of the same folder.

"""
FOOTER = """
Refused, with an error that says so: encoders (BERT and its kin),
encoder-decoders (T5, BART, Whisper), RWKV, and decoders that nobody has
described yet (Gemma 3n, PaliGemma, BLIP-2). `keras_sa.hub.register_family`
describes one.
"""


class Recorder:
    """Outcomes by family and column."""

    def __init__(self):
        self.cells = collections.defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "call" or report.outcome != "passed":
            column = item.get_closest_marker("capability").args[0]
            family = item.callspec.params["name"]
            self.cells[family, column].append(outcome_of(report))
        return report


def outcome_of(report):
    if report.skipped:
        return report.longrepr[2].removeprefix("Skipped: ")
    return "yes" if report.passed else "fails"


def cell(outcomes):
    """`yes` if all tests passed; else what was in the way."""
    others = [outcome for outcome in outcomes if outcome != "yes"]
    return others[0] if others else "yes"


def table(cells):
    columns = list(dict.fromkeys(column for _, column in cells))
    families = list(dict.fromkeys(family for family, _ in cells))
    lines = ["| family | " + " | ".join(columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for family in families:
        row = [cell(cells[family, column]) for column in columns]
        lines.append(f"| {family} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def main():
    recorder = Recorder()
    path = pathlib.Path(__file__).with_name("test_families.py")
    status = pytest.main(
        ["-q", "-m", "capability", str(path)], plugins=[recorder]
    )
    if status != 0:
        sys.exit("The table is written from tests that pass only.")
    TABLE.write_text(HEADER + table(recorder.cells) + FOOTER)
    print(f"wrote {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
