"""What patterns cost a pretrained model untrained, at equal visible keys.

    python examples/studies/real_model/run.py --preset smollm2 \\
        --text moby-dick/package/data --length 1024
    python examples/studies/real_model/run.py --preset smollm2 \\
        --text moby-dick/package/data --length 1024 --choose 0.05
    python examples/studies/real_model/run.py --preset smollm2 \\
        --text moby-dick/package/data --length 1024 --ask passkey

Reads the beginnings of the text files of a folder under full attention and
under sliding windows, stochastic windows, small worlds, dilated windows and
mixtures of blocks: plain, then with the first tokens visible to all, then with
the last tokens attending to everything too, and then with some layers full too
(--variants plain first last full). With --choose it
finds a pattern for each layer within a rise of the loss. With --ask it asks for
what is hidden in the text, or for one more of a few shots.

What is measured is kept: the same command again goes on where it was stopped.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line

FEW_SHOT = ("capitals", "antonyms", "past_tenses", "successors")
TASKS = ("passkey", "needles", "values", "variables", "words", *FEW_SHOT)
KINDS = {
    "sliding": "SlidingWindow",
    "stochastic": "Stochastic",
    "small-world-1:1": "half of the visible keys each, in one softmax",
    "small-world-3:1": "three quarters of the nearest, one of random keys",
    "sliding-and-dilated": "half of the nearest, half of every 16th key",
    "block-routed": "BlockRouted",
}
VARIANTS = ("plain", "first", "last", "full")


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    command_line.add_model_arguments(parser)
    add = parser.add_argument
    add(
        "--visible-keys",
        type=int,
        nargs="+",
        default=[128],
        help="per token, in the mean; each number with each kind and variant",
    )
    add("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    add("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    add("--documents", type=int, default=8, help="files that are read")
    add("--first", type=int, default=4, help="tokens that all others attend to")
    add(
        "--last",
        type=int,
        default=64,
        help="tokens that attend to everything, and whose loss is told",
    )
    add(
        "--full-layers",
        type=float,
        default=0.25,
        help="fraction of layers that stay full, evenly spaced",
    )
    add(
        "--choose",
        type=float,
        metavar="INCREASE",
        help="instead: a pattern for each layer, within this rise of the loss",
    )
    add(
        "--ask",
        nargs="+",
        choices=TASKS,
        help="instead: prompts of these kinds",
    )
    add("--prompts", type=int, default=20, help="of --ask")
    add("--shots", type=int, help="examples of a few-shot prompt")
    add("--batch-size", type=int, default=1, help="prompts at a time")
    add(
        "--rounds",
        type=int,
        default=3,
        help="of which times are the least; 0: only losses",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/real_model"),
    )
    arguments = command_line.parse(parser)
    command_line.check_at_least_one(
        parser,
        arguments,
        *("documents", "first", "last", "prompts", "batch_size"),
    )
    return arguments


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.real_model import measuring

    measuring.main(arguments)


if __name__ == "__main__":
    main()
