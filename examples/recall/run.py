"""What a model can recall through each attention, trained from the start.

    python examples/recall/run.py
    python examples/recall/run.py --task copy_at_distance --output results/copy
    python examples/recall/run.py --attentions sliding_window small_world \\
        --seeds 0 1 2 3 4 --visible-keys 24 --resample never

Trains a small KerasHub decoder on a task of keras_sa.evaluation, such as
associative recall (pairs of a key and a value; later a key comes again: what
was the value?), once for each attention and seed, at equal visible keys per
token, and reports the accuracy by the distance of the answer. Beyond layers
times window, no sliding window can know.

Every finished run is kept in `runs.json` of --output; the same command goes on
after an interruption, and more seeds or attentions add to what is there.
The attentions are in shared/attentions.py, the tasks in tasks.py, the file in
shared/kept_runs.py, the table and the plot in report.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from examples.shared import command_line

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
    command_line.add_comparison_arguments(parser, DEFAULT, visible_keys=16)
    add = parser.add_argument
    add("--resample", default="training", choices=("training", "never"))
    add(
        "--gate-bias",
        type=float,
        nargs=2,
        metavar=("STOCHASTIC", "LOCAL"),
        default=[0.0, 0.0],
        help="where the gates start; of a single one the last",
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


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.recall import training

    training.main(arguments)


if __name__ == "__main__":
    main()
