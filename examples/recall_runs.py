"""The finished runs of the recall example, in a file that outlives them."""

import dataclasses
import json
import math
import os

import keras

import keras_sa


@dataclasses.dataclass
class Run:
    """A model that was trained and measured.

    Attributes:
        attention: its name.
        seed: of weights, data and permutations.
        options: of `hub.swap_attention`.
        visible_keys: per token, in the mean.
        accuracy: of each bucket of distances.
        count: questions in each bucket.
        seconds: of training and measuring.
    """

    attention: str
    seed: int
    options: dict
    visible_keys: float
    accuracy: list
    count: list
    seconds: float

    def summary(self):
        shares = " ".join(f"{100 * share:.0f}" for share in self.accuracy)
        return f"% right by distance: {shares}  ({self.seconds:.0f} s)"

    def total_accuracy(self):
        """Over the questions of all buckets."""
        pairs = zip(self.accuracy, self.count)
        right = sum(share * count for share, count in pairs if count)
        return right / sum(self.count) if sum(self.count) else math.nan


class Runs:
    """The runs of a file; those with the same settings count.

    Args:
        path: of the file; it need not exist.
        settings: dict: all that a run depends on beside attention and seed.
    """

    def __init__(self, path, settings):
        self.path = path
        self.settings = {
            **json.loads(json.dumps(settings)),
            "keras": keras.__version__,
            "keras_sa": keras_sa.__version__,
        }
        self._entries = json.loads(path.read_text()) if path.is_file() else []

    def find(self, attention, seed):
        """The `Run`, or `None` if there was none."""
        for run in self._own():
            if (run.attention, run.seed) == (attention, seed):
                return run
        return None

    def of(self, attentions, seeds):
        """The runs of some attentions and seeds, in their order."""
        found = [self.find(a, seed) for a in attentions for seed in seeds]
        return [run for run in found if run is not None]

    def add(self, run):
        entry = {"settings": self.settings, "run": dataclasses.asdict(run)}
        self._entries.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: an interruption must not cost earlier runs.
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self._entries, indent=1) + "\n")
        os.replace(unfinished, self.path)

    def _own(self):
        for entry in self._entries:
            if entry["settings"] == self.settings:
                yield Run(**entry["run"])
