"""What the training-free swaps gave: the table, the conclusions, the texts."""

import dataclasses
import math

import numpy as np

from examples.shared import reports
from keras_sa.patterns import Pattern

EQUAL_LOSS = 0.01  # nats per token; less is called equal
EQUAL_TIME = 0.1  # of a ratio; timing on a busy machine tells no more


@dataclasses.dataclass
class Row:
    """One attention.

    Attributes:
        pattern: what tokens attend to.
        visible_keys: per token, in the mean.
        loss: nats per token.
        prefill_seconds: to read a prompt.
        step_seconds: to write one token.
        written: int32 `[T]`: the tokens that go on.
    """

    pattern: Pattern
    visible_keys: float
    loss: float
    prefill_seconds: float
    step_seconds: float
    written: np.ndarray

    def __str__(self):
        return repr(self.pattern)

    def summary(self):
        return (
            f"{self!s:36s} loss {self.loss:.4f}  "
            f"prompt {1000 * self.prefill_seconds:.1f} ms  "
            f"token {1000 * self.step_seconds:.2f} ms"
        )


def write(folder, rows, num_tokens, length, samples):
    """Prints everything, writes two files, and returns their paths."""
    table = "\n\n".join([tabulate(rows, num_tokens, length), conclude(rows)])
    return [
        reports.write_samples(folder, samples),
        reports.write_table(folder, table),
    ]


def tabulate(rows, num_tokens, length):
    full = rows[0]
    lines = [
        f"Trained with full attention, nothing trained after the swap. Loss "
        f"in nats per token over {num_tokens:,} tokens, in sequences of "
        f"{length} that share none; perplexity is exp(loss). Prompt: seconds "
        f"to read {length} tokens; token: to write one, attending to the "
        "whole cache; medians in one process, after compilation.",
        "",
        "| pattern | visible keys per token | loss | above full | "
        "perplexity | prompt, ms | of full | token, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        difference = "" if row is full else f"{row.loss - full.loss:+.4f}"
        lines.append(
            f"| {reports.in_cell(row.pattern)} | {row.visible_keys:.1f} | "
            f"{row.loss:.4f} | {difference} | {math.exp(row.loss):.3f} | "
            f"{1000 * row.prefill_seconds:.1f} | "
            f"{row.prefill_seconds / full.prefill_seconds:.2f} | "
            f"{1000 * row.step_seconds:.2f} |"
        )
    return "\n".join(lines)


def conclude(rows):
    """What the rows show, whoever wins."""
    full, *sparse = rows
    lines = [
        "What this run shows against full attention:",
        "",
        _tell("loss", sparse, lambda r: r.loss - full.loss, EQUAL_LOSS),
        _tell(
            "time to read a prompt",
            sparse,
            lambda r: r.prefill_seconds / full.prefill_seconds - 1,
            EQUAL_TIME,
        ),
        "- Patterns of equal windows differ in visible keys: compare at those.",
    ]
    return "\n".join(lines)


def _tell(what, rows, difference, equal):
    """A line that sorts rows into lower, equal and higher."""
    groups = {"lower": [], "equal": [], "higher": []}
    for row in rows:
        excess = difference(row)
        key = "higher" if excess > equal else "lower"
        groups["equal" if abs(excess) <= equal else key].append(str(row))
    told = "; ".join(
        f"{key} for {', '.join(names) or 'none'}"
        for key, names in groups.items()
    )
    return f"- The {what} is {told} (within {equal} is equal)."
