"""The log of a run: a row of a CSV file for every interval of steps.

Letters: `P` terms of a gated sum.
"""

import csv
import io
import os

import numpy as np

_BEFORE_GATES = (
    "step",
    "tokens",
    "loss",
    "held_out_loss",
    "learning_rate",
)
TIMING = ("tokens_per_second", "seconds")  # what no two runs have the same


def fields(num_gates):
    """Of a row, where layers have up to as many gates."""
    return (*_BEFORE_GATES, *map(gate_field, range(num_gates)), *TIMING)


def gate_field(term):
    return f"gate_{term + 1}"


def mean_gates(layers):
    """The mean over the layers that have a term, `{name: gate}`.

    Args:
        layers: the mean gates `[P]` of each layer.
    """
    return {
        gate_field(term): float(
            np.mean([gates[term] for gates in layers if len(gates) > term])
        )
        for term in range(max(map(len, layers), default=0))
    }


class CsvLog:
    """A CSV file that is cut off where a resumed run goes on.

    Args:
        path: of the file.
        num_gates: the most that a layer has.
        size: bytes of it that count. What a run wrote after its checkpoint,
            it is about to do again.
    """

    def __init__(self, path, num_gates=0, size=0):
        self.path = path
        self.fields = fields(num_gates)
        if size == 0:
            path.write_bytes(b"")
            self._append(_as_line(self.fields))
        else:
            os.truncate(path, size)

    def write(self, row):
        """Appends a row, a dict with some of `fields`."""
        self._append(_as_line([row.get(name, "") for name in self.fields]))

    @property
    def size(self):
        """Bytes that are on the disk."""
        return self.path.stat().st_size

    def _append(self, line):
        with open(self.path, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _as_line(values):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


class TensorBoardLog:
    """The same numbers for TensorBoard.

    Args:
        folder: path of the logs.
        step: where the run begins: later numbers in the folder are dropped.
    """

    def __init__(self, folder, step=0):
        import tensorboardX  # optional

        self.writer = tensorboardX.SummaryWriter(
            str(folder), purge_step=step + 1
        )

    def write(self, row):
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()


class Progress:
    """Prints a row.

    Args:
        steps: of the run.
    """

    def __init__(self, steps):
        self.steps = steps

    def write(self, row):
        held_out = row.get("held_out_loss")
        shown = "" if held_out is None else f"  held out {held_out:.4f}"
        print(
            f"  step {row['step']:6d} of {self.steps}  "
            f"loss {row['loss']:.4f}{shown}  "
            f"{row['tokens_per_second']:,.0f} tokens/s",
            flush=True,
        )
