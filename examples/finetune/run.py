"""Sparse attention that a model learns to use: LoRA and gates.

    python examples/finetune/run.py
    python examples/finetune/run.py --preset qwen3_0.6b_en --dtype bfloat16 \\
        --text ~/books --length 2048 --learning-rate 2e-4 \\
        --pattern "Stochastic(256) + SlidingWindow(256)"

Swaps a pattern into a KerasHub model, trains LoRA weights (and the gates of a
gated sum) on a folder of text files, keeps the result as a preset, loads
it back and writes with it, at a cost per token that does not grow.

Without --preset the model is the small one of bytes of the quickstart.
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
        "--pattern",
        default="Stochastic(32) + SlidingWindow(32)",
        help="what tokens attend to, as Python writes it; default: the small "
        "world, %(default)s",
    )
    add("--rank", type=int, default=8, help="of the LoRA weights")
    add(
        "--only-gates",
        action="store_true",
        help="train the gates of a gated sum and nothing else",
    )
    add("--steps", type=int, default=300)
    add("--batch-size", type=int, default=2)
    add("--learning-rate", type=float, default=3e-3)
    add("--sequences", type=int, default=40, help="of held-out text")
    add("--max-new-tokens", type=int, default=128)
    add("--output", type=pathlib.Path, default=pathlib.Path("results/finetune"))
    return command_line.parse(parser)


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.finetune import tuning

    tuning.main(arguments)


if __name__ == "__main__":
    main()
