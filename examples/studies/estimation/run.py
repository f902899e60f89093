"""Stochastic attention as an estimate of full attention: theory, measured.

    python examples/studies/estimation/run.py
    python examples/studies/estimation/run.py --is-causal

With equal scores full attention is the mean of all values, and stochastic
attention estimates it from the tokens in its window: squared bias and variance
by window size, measured and as the theory in measuring.py says.

Writes `table.md`. Needs `pip install keras_sa[analysis]`.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    add = parser.add_argument
    add("--length", type=int, default=1024, help="tokens")
    add(
        "--window-sizes",
        type=int,
        nargs="+",
        default=[4, 16, 64, 256],
        metavar="W",
    )
    add("--neighborhood", default="window", choices=("window", "block"))
    add("--is-causal", action="store_true")
    add(
        "--draws",
        type=int,
        default=32,
        help="of permutations",
    )
    add("--values", type=int, default=32, help="sets of values")
    add("--seed", type=int, default=0, help="of values and permutations")
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/estimation"),
    )
    return command_line.parse(parser)


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.estimation import report

    report.main(arguments)


if __name__ == "__main__":
    main()
