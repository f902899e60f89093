"""Measures every attention at every number of visible keys."""

import dataclasses
import time
import zlib

import keras_hub
import numpy as np
from keras import ops

from examples.shared import byte_text
from examples.shared import language_model
from examples.shared.attentions import pattern_at
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.kept_runs import KeptRuns
from examples.shared.kept_runs import Run
from examples.studies.sweep import report
from keras_sa import hub
from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import evaluate_documents
from keras_sa.patterns import Full
from keras_sa.patterns import Pattern

QUARTERS = 4
# Of the command line: what else a run depends on.
OF_A_RUN = (
    *("preset", "text", "dtype", "backend", "layers"),
    *("length", "sequences"),
)


@dataclasses.dataclass
class Point:
    """An attention at a number of visible keys.

    Attributes:
        attention: its name.
        budget: the visible keys that were asked for; `None` of full attention.
        pattern: what its tokens attend to.
    """

    attention: str
    budget: int | None
    pattern: Pattern

    def __str__(self):
        if self.budget is None:
            return self.attention
        return f"{self.attention}, {self.budget} visible keys"

    def runs(self, seeds):
        """What tells its runs from others; one where nothing is drawn."""
        seeds = seeds if self.pattern.is_random else [None]
        return [{**vars(self), "seed": seed} for seed in seeds]


def main(arguments):
    print("Loading the model", flush=True)
    model = language_model.load(arguments)
    documents = read_documents(arguments, model)
    print(f"  {documents[:, 1:].size:,} tokens to predict", flush=True)
    scorer = TokenScorer(
        model.causal_lm, arguments.batch_size, max_length=arguments.length
    )
    points = list_points(arguments)
    runs = KeptRuns(
        arguments.output / "runs.json",
        settings_of(arguments, model, documents),
    )
    for number, point in enumerate(points, start=1):
        announce(number, len(points), point)
        measure_missing(arguments, runs, point, scorer, documents)
        for of_run in point.runs(arguments.seeds):
            print(f"  {report.summarize(runs.find(**of_run))}", flush=True)

    found = [
        runs.find(**of_run)
        for point in points
        for of_run in point.runs(arguments.seeds)
    ]
    paths = report.write(arguments, found)
    announce_end([runs.path, *paths])


def list_points(arguments):
    """Full attention, and all others at each budget."""
    names = [name for name in arguments.attentions if name != "full"]
    return [Point("full", None, Full())] + [
        Point(name, budget, pattern_at(name, budget, arguments.length))
        for budget in arguments.visible_keys
        for name in names
    ]


def read_documents(arguments, model):
    """int32 `[N, n + 1]` from all of the held-out text."""
    folder = language_model.text_folder(arguments)
    _, held_out = byte_text.read_texts(folder)
    num_tokens = arguments.sequences * arguments.length + 1
    tokens = model.encode_some(held_out, num_tokens)
    inputs, targets = model.spread(
        tokens, arguments.sequences, arguments.length
    )
    return np.concatenate([inputs["token_ids"][:, :1], targets], axis=1)


def settings_of(arguments, model, documents):
    """All that every run depends on; a name may come to stand for others."""
    weights = 0
    for weight in model.causal_lm.weights:
        weights = zlib.crc32(ops.convert_to_numpy(weight).tobytes(), weights)
    return {
        **{name: getattr(arguments, name) for name in OF_A_RUN},
        "checksum_of_weights": weights,
        "checksum_of_text": zlib.crc32(documents.tobytes()),
        "keras_hub": keras_hub.__version__,
    }


def measure_missing(arguments, runs, point, scorer, documents):
    """Adds the runs of a point that are not there; compiles once."""
    missing = [x for x in point.runs(arguments.seeds) if runs.find(**x) is None]
    if not missing:
        return
    with hub.swap_attention(
        scorer.causal_lm, point.pattern, layers=arguments.layers, seed=0
    ) as swap:
        for of_run in missing:
            if of_run["seed"] is not None:
                swap.reseed(of_run["seed"])
            start = time.monotonic()
            measured = measure(arguments, scorer, documents)
            run = Run(
                **of_run,
                visible_keys=point.pattern.keys_per_token(
                    arguments.length, is_causal=True
                ),
                seconds=time.monotonic() - start,
                measured=measured,
            )
            runs.add(run)


def measure(arguments, scorer, documents):
    """The losses under the attention of the moment."""
    result = evaluate_documents(
        scorer, documents, arguments.length, position_buckets=QUARTERS
    )
    return {
        "loss": result.loss,
        "last_quarter_loss": result.by_context[-1].loss,
        "num_tokens": result.num_tokens,
    }
