"""Watch sparse attention work, on the source text of Python itself.

    python examples/quickstart/run.py
    python examples/quickstart/run.py --backend torch --text ~/notes --steps 300

1. Loads a small KerasHub language model of bytes, which was trained with full
   attention, from tiny_model beside this file.
2. Checks that a sparse attention whose windows cover everything computes what
   full attention does.
3. Swaps its attention, without training, for sparse ones, and compares the
   loss on held-out files at equal numbers of visible keys per token.
4. Fine-tunes full attention, the sliding window and the gated small world from
   the same weights for the same steps.
5. Goes on with a held-out text.

Writes `table.md`, `loss_against_visible_keys.png` and `samples.txt`.
The text, the model and the attentions are in shared/, the stages in stages.py,
the table and the plot in report.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from examples.shared import command_line


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    command_line.add_model_arguments(parser)
    add = parser.add_argument
    add(
        "--visible-keys",
        type=int,
        nargs="+",
        default=[16, 32, 64],
        help="per token: the budgets to compare at; the second lowest is "
        "that of the fine-tuning",
    )
    add(
        "--permutations",
        type=int,
        default=3,
        help="draws per random attention; from 2 on the spread is told",
    )
    add(
        "--steps",
        type=int,
        default=60,
        help="of fine-tuning each attention: all weights, unlike "
        "finetune/run.py",
    )
    add("--learning-rate", type=float, default=1e-3)
    add(
        "--gate-bias",
        type=float,
        nargs=2,
        metavar=("STOCHASTIC", "LOCAL"),
        help="where the gates start; default: that of hub.swap_attention",
    )
    add(
        "--sequences",
        type=int,
        default=40,
        help="of held-out text; a multiple of 8 compiles least",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/quickstart"),
    )
    arguments = command_line.parse(parser)
    command_line.check_at_least_one(
        parser, arguments, "permutations", "steps", "sequences"
    )
    return arguments


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.quickstart import stages

    stages.main(arguments)


if __name__ == "__main__":
    main()
