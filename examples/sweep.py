"""Training-free curves: a trained model's loss under every attention.

    python examples/sweep.py
    python examples/sweep.py --preset qwen3_0.6b_en --dtype bfloat16 \\
        --length 4096 --visible-keys 64 128 256 512 1024 --text FOLDER

Swaps the attention of a model that was trained with full attention, trains
nothing, and measures the loss on held-out text: each attention at several
numbers of visible keys per token, with permutations of several seeds. Writes a
table, the values of all runs, and a plot with error bars.

Every finished run is kept in `runs.json` of --output; the same command goes on
after an interruption, and more seeds, visible keys or attentions add to what is
there. The attentions are in attentions.py, the file in kept_runs.py, the table
and the plot in sweep_report.py.
"""

import pathlib

import command_line
from attentions import ATTENTIONS
from attentions import TRAINING_FREE


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    command_line.add_model_arguments(parser)
    add = parser.add_argument
    add(
        "--text",
        type=pathlib.Path,
        help="a folder of text files, of which the held-out ones are measured; "
        "default: Python's standard library",
    )
    add(
        "--attentions",
        nargs="+",
        default=TRAINING_FREE,
        choices=ATTENTIONS,
        help="by the names of attentions.py, without gates; full attention is "
        "measured in any case",
    )
    add(
        "--visible-keys",
        type=int,
        nargs="+",
        default=[8, 16, 32, 64, 128],
        help="per token, in the mean; all but full attention",
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1, 2, 3, 4],
        help="of the permutations",
    )
    add("--length", type=int, default=512, help="tokens of a sequence")
    add("--sequences", type=int, default=64, help="of the text, at most")
    add("--batch-size", type=int, default=8, help="sequences at a time")
    add("--output", type=pathlib.Path, default=pathlib.Path("results/sweep"))
    arguments = command_line.parse(parser)
    gated = [name for name in arguments.attentions if ATTENTIONS[name].gated]
    if gated:
        parser.error(
            "--attentions are expected to have no gates: gates would have to "
            "be trained, and nothing is trained here (see finetune.py and "
            f"recall.py). Received: {', '.join(gated)}"
        )
    for name in ("attentions", "visible_keys", "seeds"):
        once = dict.fromkeys(getattr(arguments, name))
        setattr(arguments, name, list(once))
    return arguments


arguments = parse_arguments()

# ruff: noqa: E402
import dataclasses
import time
import zlib

import byte_text
import keras_hub
import language_model
import numpy as np
import sweep_report
from attentions import is_random
from attentions import options_at
from command_line import announce
from command_line import elapsed
from kept_runs import KeptRuns
from keras import ops
from sweep_run import Run
from visible_keys import visible_keys

from keras_sa import hub
from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import evaluate_documents

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
        options: of `hub.swap_attention`.
    """

    attention: str
    budget: int | None
    options: dict

    def __str__(self):
        if self.budget is None:
            return self.attention
        return f"{self.attention}, {self.budget} visible keys"

    def runs(self):
        """What tells its runs from others; one where nothing is drawn."""
        seeds = arguments.seeds if is_random(self.options) else [None]
        return [{**dataclasses.asdict(self), "seed": seed} for seed in seeds]


def main():
    print("Loading the model", flush=True)
    model = language_model.load(arguments)
    documents = read_documents(model)
    print(f"  {documents[:, 1:].size:,} tokens to predict", flush=True)
    scorer = TokenScorer(
        model.causal_lm, arguments.batch_size, max_length=arguments.length
    )
    points = list_points()
    runs = KeptRuns(
        arguments.output / "runs.json", Run, settings_of(model, documents)
    )
    for number, point in enumerate(points, start=1):
        announce(number, len(points), point)
        measure_missing(runs, point, scorer, documents)
        for of_run in point.runs():
            print(f"  {runs.find(**of_run).summary()}", flush=True)

    wanted = [of_run for point in points for of_run in point.runs()]
    paths = sweep_report.write(
        arguments, [runs.find(**of_run) for of_run in wanted]
    )
    print(f"Done in {elapsed()} minutes. Written:")
    for path in (runs.path, *paths):
        print(f"  {path}")


def list_points():
    """Full attention, and all others at each budget."""
    names = [name for name in arguments.attentions if name != "full"]
    return [Point("full", None, {"mode": "full"})] + [
        Point(name, budget, options_at(name, budget, arguments.length))
        for budget in arguments.visible_keys
        for name in names
    ]


def read_documents(model):
    """int32 `[N, n + 1]` from all of the held-out text."""
    folder = language_model.text_folder(arguments)
    _, held_out = byte_text.read_texts(folder)
    num_tokens = arguments.sequences * arguments.length + 1
    tokens = model.encode_some(held_out, num_tokens)
    inputs, targets = model.spread(
        tokens, arguments.sequences, arguments.length
    )
    return np.concatenate([inputs["token_ids"][:, :1], targets], axis=1)


def settings_of(model, documents):
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


def measure_missing(runs, point, scorer, documents):
    """Adds the runs of a point that are not there; compiles once."""
    missing = [x for x in point.runs() if runs.find(**x) is None]
    if not missing:
        return
    with hub.swap_attention(
        scorer.causal_lm, layers=arguments.layers, seed=0, **point.options
    ) as swap:
        for of_run in missing:
            if of_run["seed"] is not None:
                swap.reseed(of_run["seed"])
            run = Run(
                **of_run,
                visible_keys=visible_keys(arguments.length, **point.options),
                **measure(scorer, documents),
            )
            runs.add(run)


def measure(scorer, documents):
    """The losses under the attention of the moment."""
    start = time.monotonic()
    result = evaluate_documents(
        scorer, documents, arguments.length, position_buckets=QUARTERS
    )
    return {
        "loss": result.loss,
        "last_quarter_loss": result.by_context[-1].loss,
        "num_tokens": result.num_tokens,
        "seconds": time.monotonic() - start,
    }


if __name__ == "__main__":
    main()
