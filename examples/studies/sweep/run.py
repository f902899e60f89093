"""Training-free curves: a trained model's loss under every attention.

    python examples/studies/sweep/run.py
    python examples/studies/sweep/run.py --preset qwen3_0.6b_en \\
        --dtype bfloat16 --length 4096 --visible-keys 64 128 256 512 1024 \\
        --text FOLDER

Swaps the attention of a model that was trained with full attention, trains
nothing, and measures the loss on held-out text: each attention at several
numbers of visible keys per token, with permutations of several seeds. Writes a
table, the values of all runs, and a plot with error bars.

Every finished run is kept in `runs.json` of --output; the same command goes on
after an interruption, and more seeds, visible keys or attentions add to what is
there. The attentions are in shared/attentions.py, the file in
shared/kept_runs.py, the table and the plot in report.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line
from examples.shared.attentions import ATTENTIONS
from examples.shared.attentions import TRAINING_FREE


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
            "be trained, and nothing is trained here (see finetune/run.py and "
            f"recall/run.py). Received: {', '.join(gated)}"
        )
    for name in ("attentions", "visible_keys", "seeds"):
        once = dict.fromkeys(getattr(arguments, name))
        setattr(arguments, name, list(once))
    return arguments


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.sweep import measuring

    measuring.main(arguments)


if __name__ == "__main__":
    main()
