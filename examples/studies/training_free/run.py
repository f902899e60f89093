"""Sparse attention in a model that was trained with full attention.

    python examples/studies/training_free/run.py
    python examples/studies/training_free/run.py --preset qwen3_0.6b_en \\
        --dtype bfloat16 --length 4096 --file book.txt \\
        --patterns "SlidingWindow(256)" "Stochastic(256) | SlidingWindow(256)"

Swaps patterns into a KerasHub model, trains nothing, and reports for each:
visible keys per token, the loss on a text, the time of reading a prompt and of
a new token, and how the text goes on. A prompt is read sparsely; new tokens
attend to all of it.

Without --preset the model is the small one of bytes of the quickstart.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line

PATTERNS = [
    pattern.format(w=window_size, block=-(-window_size // 3))
    for window_size in (32, 128)
    for pattern in (
        "SlidingWindow({w})",
        "Stochastic({w})",
        "Stochastic({w}, neighborhood='block')",
        "Stochastic({w}) | SlidingWindow({w})",
        "BlockRouted({block}, 3)",  # three blocks hold as much as a window
    )
]


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    command_line.add_model_arguments(parser)
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", help="text whose loss is measured and whose end goes on"
    )
    source.add_argument(
        "--file",
        type=pathlib.Path,
        help="the same, in a file; default: the held-out files of --text",
    )
    add(
        "--patterns",
        nargs="+",
        default=PATTERNS,
        help="as Python writes them, without gates, which would have to be "
        "trained; full attention is measured in any case",
    )
    add("--sequences", type=int, default=16, help="of the text, at most")
    add("--max-new-tokens", type=int, default=64)
    add("--runs", type=int, default=5, help="of which times are the median")
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/training_free"),
    )
    return command_line.parse(parser)


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.training_free import measuring

    measuring.main(arguments)


if __name__ == "__main__":
    main()
