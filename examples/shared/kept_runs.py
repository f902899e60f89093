"""The finished runs of an example, in a file that outlives them."""

import dataclasses
import json

import keras

import keras_sa
from keras_sa.evaluation import measuring
from keras_sa.patterns import Pattern
from keras_sa.patterns import parse_pattern


@dataclasses.dataclass
class Run:
    """A measurement of a model under one attention.

    Attributes:
        attention: its name.
        seed: of all that is drawn; `None` where nothing is.
        pattern: what its tokens attend to.
        visible_keys: per token, in the mean, as they are.
        seconds: of the run.
        measured: dict for JSON: what came of it.
        budget: visible keys that were asked for, where runs differ in them.
    """

    attention: str
    seed: int | None
    pattern: Pattern
    visible_keys: float
    seconds: float
    measured: dict
    budget: int | None = None

    def as_json(self):
        values = {**vars(self), "pattern": repr(self.pattern)}
        return values | values.pop("measured")

    @classmethod
    def from_json(cls, values):
        names = [f.name for f in dataclasses.fields(cls)]
        own = {name: values.pop(name) for name in names if name in values}
        own["pattern"] = parse_pattern(own["pattern"])
        return cls(**own, measured=values)


class KeptRuns:
    """The runs of a file; those with the same settings count.

    Args:
        path: of the file; it need not exist.
        settings: dict: all that a run depends on beside what `find` is given.
    """

    def __init__(self, path, settings):
        self.path = path
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
        entry = {"settings": self.settings, "run": run.as_json()}
        self._entries.append(entry)
        # Whole or not at all: an interruption must not cost earlier runs.
        measuring.write_json(self.path, self._entries)

    def _own(self):
        for entry in self._entries:
            if entry["settings"] == self.settings:
                yield Run.from_json(dict(entry["run"]))
