"""The small-world curve: how many shortcuts does a small world take?

    python examples/studies/small_world_curve/run.py

A sliding window gives its neighbors away by twos to windows of 3 slots, each
over a random permutation of its own: path length and clustering against the
fraction of shortcuts, beside rings whose edges are rewired at random, as Watts
and Strogatz drew them.

Writes `table.md` and `small_world_curve.png`. Needs
`pip install keras_sa[analysis]`.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    add = parser.add_argument
    add("--length", type=int, default=4096, help="tokens")
    add("--degree", type=int, default=26, help="neighbors: even, from 4")
    add("--samples", type=int, help="tokens from which paths are measured")
    add("--seed", type=int, default=0, help="of permutations and samples")
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/small_world_curve"),
    )
    arguments = command_line.parse(parser)
    # A ring of 2 neighbors has no clustering to compare with.
    if arguments.degree not in range(4, arguments.length, 2):
        parser.error(
            "--degree is expected to be an even integer from 4 and less than "
            f"--length {arguments.length}. Received: {arguments.degree}"
        )
    return arguments


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.small_world_curve import report

    report.main(arguments)


if __name__ == "__main__":
    main()
