"""Sparse attention that a model learns to use: LoRA and gates.

    python examples/finetune/run.py
    python examples/finetune/run.py --preset qwen3_0.6b_en --dtype bfloat16 \\
        --text ~/books --window 256 --length 2048 --learning-rate 2e-4

Swaps the attention of a KerasHub model, trains LoRA weights (and the gates of
the small world) on a folder of text files, keeps the result as a preset, loads
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
        "--mode",
        default="small_world",
        choices=("sliding_window", "stochastic", "small_world"),
    )
    add("--window", type=int, default=32)
    add(
        "--merge",
        choices=("gate", "softmax"),
        help="of small_world; default: gate",
    )
    add("--rank", type=int, default=8, help="of the LoRA weights")
    add(
        "--only-gates",
        action="store_true",
        help="train the gates of small_world and nothing else",
    )
    add("--steps", type=int, default=300)
    add("--batch-size", type=int, default=2)
    add("--learning-rate", type=float, default=3e-3)
    add("--sequences", type=int, default=40, help="of held-out text")
    add("--max-new-tokens", type=int, default=128)
    add("--output", type=pathlib.Path, default=pathlib.Path("results/finetune"))
    arguments = command_line.parse(parser)
    has_gates = arguments.mode == "small_world" and arguments.merge != "softmax"
    if arguments.only_gates and not has_gates:
        parser.error(
            "--only-gates expects gates: --mode small_world --merge gate. "
            f"Received: --mode {arguments.mode} --merge {arguments.merge}"
        )
    return arguments


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.finetune import tuning

    tuning.main(arguments)


if __name__ == "__main__":
    main()
