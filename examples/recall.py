"""What a model can recall through each attention, trained from the start.

    python examples/recall.py
    python examples/recall.py --task copy_at_distance --output results/copy
    python examples/recall.py --attentions sliding_window small_world \\
        --seeds 0 1 2 3 4 --visible-keys 24 --resample never

Trains a small KerasHub decoder on a task of keras_sa.evaluation, such as
associative recall (pairs of a key and a value; later a key comes again: what
was the value?), once for each attention and seed, at equal visible keys per
token, and reports the accuracy by the distance of the answer. Beyond layers
times window, no sliding window can know.

Every finished run is kept in `runs.json` of --output; the same command goes on
after an interruption, and more seeds or attentions add to what is there.
The attentions are in attentions.py, the tasks in recall_tasks.py, the file in
kept_runs.py, the table and the plot in recall_report.py.
"""

import pathlib

import command_line
from attentions import ATTENTIONS
from attentions import options_at

DEFAULT = (
    "full",
    "sliding_window",
    "stochastic",
    "small_world",
    "small_world_softmax",
    "block_routed",
)


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    add = parser.add_argument
    add(
        "--attentions",
        nargs="+",
        default=DEFAULT,
        choices=ATTENTIONS,
        help="by the names of attentions.py",
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add(
        "--visible-keys",
        type=int,
        default=16,
        help="per token, in the mean; all but full attention",
    )
    add("--resample", default="training", choices=("training", "never"))
    add(
        "--gate-bias",
        type=float,
        nargs=2,
        metavar=("STOCHASTIC", "LOCAL"),
        default=[0.0, 0.0],
        help="where the gates of small_world start",
    )
    task = parser.add_argument_group("task")
    add = task.add_argument
    add(
        "--task",
        default="associative_recall",
        choices=("associative_recall", "copy_at_distance", "induction"),
    )
    add("--length", type=int, default=128, help="tokens of a sequence")
    add("--vocabulary-size", type=int, default=17)
    add("--num-pairs", type=int, default=4, help="of associative_recall")
    add("--num-queries", type=int, default=4, help="of associative_recall")
    add("--string-length", type=int, default=8, help="of copy_at_distance")
    add("--num-examples", type=int, default=1000, help="to measure on")
    add(
        "--buckets",
        type=int,
        nargs="+",
        help="increasing distances; a bucket goes from one to the next. "
        "Default: the eighths of the length",
    )
    model = parser.add_argument_group("model and training")
    add = model.add_argument
    add("--num-layers", type=int, default=3)
    add("--hidden-dim", type=int, default=64)
    add(
        "--short-steps",
        type=int,
        default=800,
        help="on short sequences: recall itself is learned there, at a "
        "fraction of the cost",
    )
    add("--steps", type=int, default=800, help="on sequences of --length")
    add("--tokens-per-batch", type=int, default=1024)
    add("--learning-rate", type=float, default=1e-3)
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("results/recall")
    )
    arguments = command_line.parse(parser)
    if arguments.buckets is None:
        step = max(1, arguments.length // 8)
        arguments.buckets = [1, *range(step, arguments.length + 1, step)]
    return arguments


arguments = parse_arguments()

# ruff: noqa: E402
import time

import keras
import recall_report
import small_model
from command_line import announce
from command_line import elapsed
from kept_runs import KeptRuns
from recall_run import Run
from recall_tasks import TASKS
from visible_keys import visible_keys

from keras_sa import evaluation
from keras_sa import hub

EVALUATION_SEED = 2**31  # apart from the seeds of training
EVALUATION_BATCH_SIZE = 50
# Of the command line: what else a run depends on.
NOT_OF_A_RUN = ("attentions", "seeds", "output")


def main():
    settings = {
        name: value
        for name, value in vars(arguments).items()
        if name not in NOT_OF_A_RUN
    }
    runs = KeptRuns(arguments.output / "runs.json", Run, settings)
    todo = [
        {"attention": attention, "seed": seed}
        for seed in arguments.seeds
        for attention in arguments.attentions
    ]
    measured = make_examples(
        arguments.num_examples, arguments.length, EVALUATION_SEED
    )
    for number, of_run in enumerate(todo, start=1):
        announce(number, len(todo), "{attention}, seed {seed}".format(**of_run))
        run = runs.find(**of_run)
        if run is None:
            run = train_and_measure(**of_run, measured=measured)
            runs.add(run)
        print(f"  {run.summary()}", flush=True)

    paths = recall_report.write(
        arguments, [runs.find(**of_run) for of_run in todo], measured
    )
    print(f"Done in {elapsed()} minutes. Written:")
    for path in (runs.path, *paths):
        print(f"  {path}")


def make_examples(num_examples, length, seed):
    task = TASKS[arguments.task]
    return task.examples(arguments, num_examples, length, seed)


def train_and_measure(attention, seed, measured):
    """A `Run`: the model is trained with the attention it is measured with."""
    start = time.monotonic()
    keras.utils.set_random_seed(seed)
    model = small_model.build(
        vocabulary_size=arguments.vocabulary_size,
        num_layers=arguments.num_layers,
        hidden_dim=arguments.hidden_dim,
        intermediate_dim=2 * arguments.hidden_dim,
    )
    options = options_at(attention, arguments.visible_keys, arguments.length)
    trained = {**training_options(options), **options}
    hub.swap_attention(model, seed=seed, **trained)
    train(model, seed)
    accuracy = evaluation.evaluate_task(
        model, measured, EVALUATION_BATCH_SIZE, arguments.buckets
    )
    return Run(
        attention=attention,
        seed=seed,
        options=options,
        visible_keys=visible_keys(arguments.length, **options),
        accuracy=[bucket.accuracy for bucket in accuracy],
        count=[bucket.count for bucket in accuracy],
        seconds=time.monotonic() - start,
    )


def training_options(options):
    """How a swap is trained: its gates and its orders."""
    added = {}
    if options["mode"] in ("stochastic", "small_world"):
        added["resample"] = arguments.resample
    if options.get("merge") == "gate":
        added["gate_bias"] = arguments.gate_bias
    return added


def train(model, seed):
    """On short sequences, then on long ones."""
    if arguments.short_steps:
        shortest = TASKS[arguments.task].shortest(arguments)
        fit(model, shortest, arguments.short_steps, seed)
    fit(model, arguments.length, arguments.steps, seed)


def fit(model, length, steps, seed):
    batch_size = max(1, arguments.tokens_per_batch // length)
    small_model.compile_for_training(model, steps, arguments.learning_rate)
    model.fit(
        **make_examples(steps * batch_size, length, seed).as_fit_arguments(),
        batch_size=batch_size,
        shuffle=False,  # they were drawn at random
        verbose=0,
        callbacks=[small_model.Progress()],
    )


if __name__ == "__main__":
    main()
