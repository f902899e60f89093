"""Trains a KerasHub decoder from scratch with the attention of your choice.

    python examples/pretrain.py
    python examples/pretrain.py --attention small_world --output results/sw
    python examples/pretrain.py --size paper-360m --attention small_world \\
        --dataset HuggingFaceFW/fineweb-edu --dataset-config sample-100BT \\
        --dry-run

--size sets everything that is not given. Without --dataset the text is a
folder of files, a tenth of which is held out.

The folder of --output gets a log, checkpoints, and at the end the model as a
KerasHub preset. The same command again goes on where it was stopped, and ends
as if it had not been. --dry-run tells what a run will take.
"""

import dataclasses
import pathlib

import command_line
import pretrain_attention
from pretrain_sizes import SIZES

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
    pretrain_attention.add_arguments(parser)
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
        lines.append(f"  {name}: window {size.window_size}, {training}")
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
    pretrain_attention.fill_in_defaults(arguments, size.window_size)


def check(parser, arguments):
    wrong = pretrain_attention.why_not(arguments)
    if wrong:
        parser.error(wrong)
    for name in _AT_LEAST_ONE:
        if getattr(arguments, name) < 1:
            option = name.replace("_", "-")
            parser.error(
                f"--{option} is expected to be at least 1. "
                f"Received: --{option} {getattr(arguments, name)}"
            )
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


arguments = parse_arguments()

# ruff: noqa: E402
import keras
import numpy as np
import pretrain_batches
import pretrain_budget
import pretrain_devices
import pretrain_documents
import pretrain_log
import pretrain_model
import pretrain_optimizer
import pretrain_tokenizer
from command_line import announce
from command_line import elapsed
from pretrain_checkpoint import Checkpoints
from pretrain_run import Run
from pretrain_training import Plan
from pretrain_training import Training

from keras_sa import evaluation
from keras_sa import hub

STAGES = 4


def main():
    shape = dataclasses.replace(
        SIZES[arguments.size].shape, num_layers=arguments.layers
    )
    if arguments.dry_run:
        vocabulary_size = pretrain_tokenizer.vocabulary_size(
            arguments.tokenizer, arguments.vocabulary_size
        )
        report(shape, vocabulary_size)
        return

    announce(1, STAGES, "Reading documents")
    run = Run(arguments.output)
    train, held_out, tokenizer = read(run)

    announce(2, STAGES, f"Building {arguments.size}")
    report(shape, tokenizer.vocabulary_size)
    training = make_training(run, shape, train, held_out, tokenizer)

    announce(3, STAGES, f"Training from step {training.step}")
    training.run(*make_logs(run, training))

    announce(4, STAGES, "Keeping the model")
    preprocessor = tokenizer.preprocessor(arguments.length)
    run.keep(training.model, preprocessor, summarize(training))
    print(
        f"Done in {elapsed()} minutes. Held-out loss: "
        f"{training.held_out_loss:.4f} nats per token. Written:"
    )
    for path in (run.preset, run.log):
        print(f"  {path}")


def read(run):
    """Documents to train on, held-out examples and the tokenizer."""
    train, held_out = pretrain_documents.find(arguments)
    run.claim(arguments, train.describe())
    tokenizer = pretrain_tokenizer.load_or_train(
        arguments.tokenizer,
        arguments.vocabulary_size,
        pretrain_documents.some(train, arguments.tokenizer_documents),
        run.tokenizer,
    )
    examples = pretrain_batches.held_out_examples(
        held_out,
        tokenizer,
        arguments.length,
        arguments.held_out_sequences,
        arguments.batch_size,
    )
    print(
        f"  {len(train):,} documents to train on, {len(held_out):,} held out; "
        f"{examples[1].size:,} held-out tokens are measured"
    )
    return train, examples, tokenizer


def make_training(run, shape, train, held_out, tokenizer):
    """The `Training` of a new model, or as its last checkpoint left it."""
    if arguments.data_parallel:
        pretrain_devices.use_all(arguments.batch_size)
    model, gates = make_model(shape, tokenizer.vocabulary_size)
    batches = pretrain_batches.training_batches(
        train,
        tokenizer,
        arguments.length,
        arguments.batch_size,
        arguments.seed,
        arguments.shuffle_buffer,
    )
    checkpoints = Checkpoints(run.checkpoints)
    return Training(model, gates, batches, held_out, make_plan(), checkpoints)


def report(shape, vocabulary_size):
    print(f"  attention: {pretrain_attention.describe(arguments)}")
    for line in pretrain_budget.report(arguments, shape, vocabulary_size):
        print(f"  {line}")


def make_model(shape, vocabulary_size):
    """The compiled model and the gates of its attention."""
    keras.utils.set_random_seed(arguments.seed)
    model = pretrain_model.build(shape, vocabulary_size, arguments.dtype)
    gates = swap_attention(model)
    pretrain_optimizer.compile_for_training(
        model,
        steps=arguments.steps,
        warmup_steps=arguments.warmup_steps,
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        global_clipnorm=arguments.clipnorm,
        accumulation=arguments.accumulation,
    )
    return model, gates


def swap_attention(model):
    """Puts the attention in; returns its gates, if it has any."""
    options = pretrain_attention.swap_options(arguments)
    if not options:
        return []
    try:
        swap = hub.swap_attention(model, seed=arguments.seed, **options)
    except ValueError as error:
        raise SystemExit(f"--attention: {error}") from error
    return swap.gates


def make_plan():
    return Plan(
        steps=arguments.steps,
        log_every=arguments.log_every,
        evaluate_every=arguments.evaluate_every,
        checkpoint_every=arguments.checkpoint_every,
        batch_size=arguments.batch_size,
        accumulation=arguments.accumulation,
        tokens_per_step=pretrain_budget.tokens_per_step(arguments),
    )


def make_logs(run, training):
    """The logs, that of CSV first."""
    yield pretrain_log.CsvLog(run.log, training.log_size)
    yield pretrain_log.Progress(arguments.steps)
    if arguments.tensorboard:
        yield pretrain_log.TensorBoardLog(run.tensorboard, training.step)


def summarize(training):
    return {
        "attention": pretrain_attention.describe(arguments),
        "parameters": training.model.count_params(),
        "steps": training.step,
        "tokens": training.step * training.plan.tokens_per_step,
        "held_out_loss": training.held_out_loss,
        "held_out_tokens": training.held_out[1].size,
        "held_out_loss_by_quarter_of_context": loss_by_context(training),
        **gates_of(training),
        "seconds_of_training": round(training.seconds, 1),
        "backend": keras.config.backend(),
        "keras": keras.version(),
    }


def loss_by_context(training):
    """Held-out losses of the tokens in each quarter of the context."""
    inputs, targets = training.held_out
    documents = np.concatenate([inputs["token_ids"], targets[:, -1:]], axis=1)
    result = evaluation.evaluate_documents(
        training.model,
        documents,
        arguments.length,
        batch_size=arguments.batch_size,
    )
    return [part.loss for part in result.by_context]


def gates_of(training):
    layers = training.measure_gates()
    return {"gates_by_layer": layers} if layers else {}


if __name__ == "__main__":
    main()
