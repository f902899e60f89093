"""Trains one decoder from scratch through each attention, and compares.

    python examples/pretrain/compare.py
    python examples/pretrain/compare.py --jobs 2 --seeds 0 1 2 --steps 800
    python examples/pretrain/compare.py --size paper-360m \\
        --visible-keys 256 --dataset HuggingFaceFW/fineweb-edu \\
        --dataset-config sample-100BT --data-parallel

Every run is one of run.py, to which options that are not known here are
handed on. For one seed all start from the same weights and read the same
batches; all but full attention show a token the same number of keys.

A run that is finished is not made again, one that was stopped goes on: start
the same command again. The attentions are in shared/attentions.py, the tables
and the plot in comparison_report.py.
"""

import pathlib
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from examples.pretrain.sizes import SIZES
from examples.shared import command_line

DEFAULT = (
    "full",
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world",
    "small_world_block",
    "block_routed",
    "gated_window",
    "half_window",
    "two_windows",
    "small_world_per_head",
)
_OWN = ("--pattern", "--seed", "--output", "--dry-run")  # of run.py


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    parser.allow_abbrev = False
    command_line.add_comparison_arguments(parser, DEFAULT, visible_keys=32)
    add = parser.add_argument
    add("--size", default="tiny", choices=SIZES)
    add("--length", type=int, help="tokens of a sequence; default: by --size")
    add(
        "--jobs",
        type=int,
        default=1,
        help="runs at a time, each on its share of the CPU's cores",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/pretrain_comparison"),
    )
    arguments, arguments.handed_on = command_line.parse_known(parser)
    if arguments.length is None:
        arguments.length = SIZES[arguments.size].training["length"]
    check(parser, arguments)
    return arguments


def check(parser, arguments):
    for option in _OWN:
        if option in arguments.handed_on:
            parser.error(
                f"{option} is expected not to be given: it differs from run to "
                f"run. Received: {shlex.join(arguments.handed_on)}"
            )
    command_line.check_at_least_one(parser, arguments, "jobs", "visible_keys")


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.pretrain import comparison

    comparison.main(arguments)


if __name__ == "__main__":
    main()
