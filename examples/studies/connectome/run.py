"""Attentions beside a connectome: how much of a small world each of them is.

    python examples/studies/connectome/run.py
    python examples/studies/connectome/run.py \\
        --edge-list connections.csv.gz --weight-column syn_count --min-weight 5

Without --edge-list: attentions of as many tokens as a fruit fly's brain has
neurons, as sparse as it, beside what was published of the fly. With it: a graph
that was measured, and attentions of its size and degree.

Writes `table.md` and `pattern.png`. Needs `pip install keras_sa[analysis]`, and
pyarrow for an edge list.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line
from examples.studies.connectome.fly import FLY

_OF_EDGE_LISTS = (
    "source_column",
    "target_column",
    "weight_column",
    "min_weight",
)


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    add = parser.add_argument
    add(
        "--length",
        type=int,
        help="tokens; default: as many as the fly has neurons",
    )
    add(
        "--edge-list",
        type=pathlib.Path,
        metavar="FILE",
        help=".csv or .tsv, also .gz or .bz2, .parquet or .feather",
    )
    add(
        "--source-column",
        metavar="NAME",
        help="of the nodes where edges start (default: the first column)",
    )
    add(
        "--target-column",
        metavar="NAME",
        help="of the nodes where they lead (default: the second column)",
    )
    add(
        "--weight-column",
        metavar="NAME",
        help="of numbers, such as counts of synapses",
    )
    add(
        "--min-weight",
        type=float,
        metavar="NUMBER",
        help="leaves edges of less weight out",
    )
    add(
        "--samples",
        type=int,
        help="nodes from which paths are measured (default: all of a small "
        "graph, else a random sample)",
    )
    add("--seed", type=int, default=0, help="of permutations and samples")
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/connectome"),
    )
    arguments = command_line.parse(parser)
    _check(parser, arguments)
    return arguments


def _check(parser, arguments):
    with_edges = arguments.edge_list is not None
    for name in ("length",) if with_edges else _OF_EDGE_LISTS:
        if getattr(arguments, name) is not None:
            parser.error(
                f"--{name.replace('_', '-')} is not expected "
                f"{'with' if with_edges else 'without'} --edge-list"
            )
    if arguments.length is not None and arguments.length <= FLY.degree:
        parser.error(
            f"--length is expected to be above {FLY.degree:.0f}, the number "
            f"of neighbors. Received: {arguments.length}"
        )


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.connectome import report

    report.main(arguments)


if __name__ == "__main__":
    main()
