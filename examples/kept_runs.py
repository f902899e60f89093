"""The finished runs of an example, in a file that outlives them."""

import dataclasses
import json
import os

import keras

import keras_sa


class KeptRuns:
    """The runs of a file; those with the same settings count.

    Args:
        path: of the file; it need not exist.
        run_class: dataclass of a run, with attributes that JSON can hold.
        settings: dict: all that a run depends on beside what `find` is given.
    """

    def __init__(self, path, run_class, settings):
        self.path = path
        self.run_class = run_class
        self.settings = {
            **json.loads(json.dumps(settings, default=str)),
            "keras": keras.__version__,
            "keras_sa": keras_sa.__version__,
        }
        self._entries = json.loads(path.read_text()) if path.is_file() else []

    def find(self, **attributes):
        """The run that has these attributes, or `None`."""
        for run in self._own():
            if attributes.items() <= vars(run).items():
                return run
        return None

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
                yield self.run_class(**entry["run"])
