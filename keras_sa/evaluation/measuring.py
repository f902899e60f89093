"""What measurements of a model under several patterns share.

Letters: `N` documents, `n` tokens of a document that are predicted.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib

import numpy as np

from keras_sa import _validation
from keras_sa import _version
from keras_sa import hub
from keras_sa.evaluation.scoring import TokenScorer
from keras_sa.patterns import Full

PARTS = ("all", "second half", "last")
CONFIDENCE = 0.95
# How much the loss of a document may differ on a machine that goes on with what
# another one began.
_SAME_LOSS = 1e-3


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over documents.

    Attributes:
        mean: float.
        low: float: where its confidence interval of 95 % begins, by Student's
            t over the documents; nan of one document.
        high: float: where it ends.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        """From one value for each document."""
        from scipy import stats

        mean = float(np.mean(values))
        if len(values) < 2:
            return cls(mean, math.nan, math.nan)
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        reach = error * stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
        return cls(mean, mean - reach, mean + reach)

    def __str__(self):
        if math.isnan(self.low):
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} ± {self.high - self.mean:.3f}"


class Reader:
    """Reads documents with a model under one pattern after the other.

    Args:
        model: a `keras_hub.models.CausalLM`, not swapped.
        length: `n`, int.
        last_tokens: int: how many the part `"last"` has.

    Raises:
        ValueError: for another model, or numbers out of range.
    """

    def __init__(self, model, length, last_tokens):
        self.length = _validation.check_positive_int("length", length)
        self.last_tokens = _validation.check_positive_int(
            "last_tokens", last_tokens
        )
        if last_tokens > length:
            raise ValueError(
                f"`last_tokens` is expected to be at most `length`, {length}. "
                f"Received: last_tokens={last_tokens}"
            )
        self.model = model
        self._scorer = TokenScorer(model, batch_size=1, max_length=length)
        swap = hub.current_swap(model)
        if swap is not None:
            raise ValueError(
                "`model` is expected to have its own attention, which the "
                "patterns are compared with: call `restore()` first. "
                f"Received: {swap!r}"
            )
        self.native = [x.pattern for x in hub.attention_patterns(model)]

    def check(self, name, pattern, **options):
        """The swap of a pattern that needs no gates, which is over again.

        Raises:
            ValueError: for what does not fit the model, or has gates.
        """
        with hub.swap_attention(self.model, pattern, **options) as swap:
            if swap.gates:
                raise ValueError(
                    "Patterns are expected to need no training: the gates of a "
                    "sum (`+`) would have to be trained first. Combine with "
                    f"`|`. Received: {name}: {pattern!r}"
                )
            return swap

    def losses(self, documents):
        """`{part: losses of the N documents}` under the attention of now."""
        scores = self._scorer.score_sequences(documents)
        losses = np.array(
            [-x.log_probabilities.astype("float64") for x in scores]
        )  # [N, n]
        first = {"all": 0, "second half": self.length // 2}
        first["last"] = self.length - self.last_tokens
        return {
            part: losses[:, first[part] :].mean(axis=1).tolist()
            for part in PARTS
        }

    def patterns(self, swapped):
        """Those of all layers, given `{index: pattern}` of the swapped ones."""
        return [swapped.get(i, own) for i, own in enumerate(self.native)]

    def visible_keys(self, swapped):
        """Per token, in the mean over tokens and layers."""
        keys = [
            pattern.keys_per_token(self.length, is_causal=True)
            for pattern in self.patterns(swapped)
        ]
        return float(np.mean(keys))

    def num_sparse(self, swapped):
        """How many layers are not full attention."""
        return sum(pattern != Full() for pattern in self.patterns(swapped))

    def settings(self, documents, **others):
        """What results depend on beside the pattern, as JSON has it."""
        settings = {
            "model": type(self.model).__name__,
            "parameters": int(self.model.count_params()),
            "documents": len(documents),
            "tokens": hashlib.sha256(documents.tobytes()).hexdigest(),
            "length": self.length,
            "last_tokens": self.last_tokens,
            "keras_sa": _version.__version__,
            **others,
        }
        return as_json(settings)

    def check_same_weights(self, documents, losses, path, part="all"):
        """The loss of a document tells whether a file is of these weights."""
        loss, kept = self.losses(documents[:1])[part][0], losses[0]
        if not abs(loss - kept) < _SAME_LOSS:
            raise ValueError(
                "`path` is expected to hold results of the same weights. "
                f"Received: path={str(path)!r}, where the first document has "
                f"a loss of {kept:.4f}, and a model with one of {loss:.4f}"
            )


def as_json(values):
    """Lists for tuples, and so on."""
    return json.loads(json.dumps(values))


def read_json(path, settings):
    """What `write_json` wrote with these settings; `None` if nothing did."""
    if path is None or not pathlib.Path(path).is_file():
        return None
    values = json.loads(pathlib.Path(path).read_text())
    kept = values["settings"]
    different = [
        f"{key}: {kept.get(key)!r} there, {value!r} here"
        for key, value in settings.items()
        if kept.get(key) != value
    ]
    if different:
        raise ValueError(
            "`path` is expected to hold no results of other settings: remove "
            f"the file, or take another. Received: path={str(path)!r} with "
            + "; ".join(different)
        )
    return values


def write_json(path, values):
    """Writes a file, whole or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(values, indent=1) + "\n")
    os.replace(unfinished, path)


def tabulate(columns, rows):
    """A markdown table; all but the first column are of numbers."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    cells = [[x.replace("|", r"\|") for x in row] for row in (columns, *rows)]
    head, *lines = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([head, f"|{'|'.join(rule)}|", *lines])
