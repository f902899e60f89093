"""Trains a KerasHub decoder from scratch with the pattern of your choice.

    python examples/pretrain/run.py
    python examples/pretrain/run.py --output results/small_world \\
        --pattern "Stochastic(64) + SlidingWindow(64)"
    python examples/pretrain/run.py --size paper-360m \\
        --pattern "Stochastic(256) + SlidingWindow(256)" \\
        --dataset HuggingFaceFW/fineweb-edu --dataset-config sample-100BT \\
        --dry-run

--size sets everything that is not given. Without --dataset the text is a
folder of files, a tenth of which is held out.

The folder of --output gets a log, checkpoints, and at the end the model as a
KerasHub preset. The same command again goes on where it was stopped, and ends
as if it had not been. --dry-run tells what a run will take.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from examples.pretrain import attention_options
from examples.pretrain.sizes import SIZES
from examples.shared import command_line

_INTERVALS_BETWEEN_CHECKPOINTS = 10
_AT_LEAST_ONE = (
    *(
        "layers",
        "length",
        "batch_size",
        "accumulation",
        "steps",
        "warmup_steps",
    ),
    *("log_every", "evaluate_every", "checkpoint_every", "shuffle_buffer"),
    *("held_out_sequences", "vocabulary_size", "tokenizer_documents"),
)


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    parser.set_defaults(length=None)
    parser.epilog = describe_sizes()
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument(
        "--layers", type=int, help="of the model; default: by --size"
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/pretrain"),
        help="folder of the run",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print parameters, FLOPs and memory, and do nothing",
    )
    attention_options.add_arguments(parser)
    add_data_arguments(parser)
    add_training_arguments(parser)
    add_log_arguments(parser)
    arguments = command_line.parse(parser)
    fill_in_defaults(arguments)
    check(parser, arguments)
    return arguments


def describe_sizes():
    lines = ["defaults by --size:"]
    for name, size in SIZES.items():
        training = ", ".join(f"{k} {v}" for k, v in size.training.items())
        lines.append(f"  {name}: {training}")
    return "\n".join(lines).replace("_", "-")


def add_data_arguments(parser):
    add = parser.add_argument_group("data, beside --text").add_argument
    add(
        "--dataset",
        help="what datasets.load_dataset takes: a name on the Hugging Face "
        "hub, a folder, or json, text or parquet with --data-files",
    )
    add("--dataset-config", help="of the dataset, such as a subset")
    add("--data-files", nargs="+", help="of the dataset")
    add("--text-column", default="text", help="of the dataset; default: text")
    add(
        "--tokenizer",
        help="bytes; bpe: byte pairs, trained on the documents and kept in "
        "--output; or a preset of keras_hub.models.Qwen3Tokenizer, such as the "
        "folder of another run's. Default: by --size",
    )
    add("--vocabulary-size", type=int, help="of bpe; default: by --size")
    add(
        "--tokenizer-documents",
        type=int,
        default=100_000,
        help="at most as many train bpe; default: 100,000",
    )
    add(
        "--shuffle-buffer",
        type=int,
        default=1024,
        help="sequences that are shuffled together, after documents were; "
        "default: 1024",
    )
    add(
        "--held-out-sequences",
        type=int,
        help="of the held-out loss, at most; default: by --size",
    )


def add_training_arguments(parser):
    group = parser.add_argument_group("training, defaults by --size")
    add = group.add_argument
    add("--steps", type=int, help="updates of the weights")
    add("--batch-size", type=int, help="sequences of a batch")
    add("--accumulation", type=int, help="batches of a step")
    add("--learning-rate", type=float, help="the highest")
    add("--warmup-steps", type=int, help="at most a fifth of --steps")
    add("--weight-decay", type=float, default=0.1, help="default: 0.1")
    add(
        "--clipnorm",
        type=float,
        default=1.0,
        help="norm that the gradient may have; default: 1",
    )
    add("--dtype", choices=("float32", "mixed_bfloat16", "mixed_float16"))
    add(
        "--data-parallel",
        action="store_true",
        help="cut batches up between all devices (JAX)",
    )


def add_log_arguments(parser):
    add = parser.add_argument_group("log and checkpoints").add_argument
    add("--log-every", type=int, help="steps; default: by --size")
    for name, what in (
        ("evaluate", "held-out losses"),
        ("checkpoint", "checkpoints"),
    ):
        add(
            f"--{name}-every",
            type=int,
            help=f"steps between {what}, a multiple of --log-every; default: "
            f"{_INTERVALS_BETWEEN_CHECKPOINTS} times --log-every",
        )
    add(
        "--tensorboard",
        action="store_true",
        help="write the log for TensorBoard, too",
    )


def fill_in_defaults(arguments):
    """What the size says, for what was not given."""
    size = SIZES[arguments.size]
    if arguments.layers is None:
        arguments.layers = size.shape.num_layers
    warmup_was_given = arguments.warmup_steps is not None
    for name, value in size.training.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if not warmup_was_given:
        longest = max(1, arguments.steps // 5)
        arguments.warmup_steps = min(arguments.warmup_steps, longest)
    interval = _INTERVALS_BETWEEN_CHECKPOINTS * arguments.log_every
    arguments.evaluate_every = arguments.evaluate_every or interval
    arguments.checkpoint_every = arguments.checkpoint_every or interval


def check(parser, arguments):
    command_line.check_at_least_one(parser, arguments, *_AT_LEAST_ONE)
    for name in ("evaluate_every", "checkpoint_every"):
        if getattr(arguments, name) % arguments.log_every:
            option = name.replace("_", "-")
            parser.error(
                f"--{option} is expected to be a multiple of --log-every "
                f"{arguments.log_every}. "
                f"Received: --{option} {getattr(arguments, name)}"
            )
    if arguments.dataset and arguments.text:
        parser.error(
            "Either --text or --dataset is expected. Received: --text "
            f"{arguments.text} --dataset {arguments.dataset}"
        )


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.pretrain import stages

    stages.main(arguments)


if __name__ == "__main__":
    main()
