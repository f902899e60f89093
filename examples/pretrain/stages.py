"""The stages of a run: documents, model, training, preset."""

import dataclasses

import keras
import numpy as np

from examples.pretrain import attention_options
from examples.pretrain import budget
from examples.pretrain import devices
from examples.pretrain import documents
from examples.pretrain import tokenizing
from examples.pretrain.batches import held_out_examples
from examples.pretrain.batches import training_batches
from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.log import CsvLog
from examples.pretrain.log import Progress
from examples.pretrain.log import TensorBoardLog
from examples.pretrain.model import build_model
from examples.pretrain.optimizer import compile_for_training
from examples.pretrain.run_folder import RunFolder
from examples.pretrain.sizes import SIZES
from examples.pretrain.training import Plan
from examples.pretrain.training import Training
from examples.shared.command_line import announce
from examples.shared.command_line import elapsed
from keras_sa import evaluation
from keras_sa import hub

STAGES = 4


def main(arguments):
    shape = dataclasses.replace(
        SIZES[arguments.size].shape, num_layers=arguments.layers
    )
    patterns = attention_options.patterns_of_layers(arguments, arguments.layers)
    if arguments.dry_run:
        vocabulary_size = tokenizing.vocabulary_size(
            arguments.tokenizer, arguments.vocabulary_size
        )
        report(arguments, shape, patterns, vocabulary_size)
        return

    announce(1, STAGES, "Reading documents")
    run = RunFolder(arguments.output)
    train, held_out, tokenizer = read(arguments, run)

    announce(2, STAGES, f"Building {arguments.size}")
    report(arguments, shape, patterns, tokenizer.vocabulary_size)
    training = make_training(arguments, run, shape, train, held_out, tokenizer)

    announce(3, STAGES, f"Training from step {training.step}")
    training.run(*make_logs(arguments, run, training))

    announce(4, STAGES, "Keeping the model")
    preprocessor = tokenizer.preprocessor(arguments.length)
    run.keep(training.model, preprocessor, summarize(arguments, training))
    print(
        f"Done in {elapsed()} minutes. Held-out loss: "
        f"{training.held_out_loss:.4f} nats per token. Written:"
    )
    for path in (run.preset, run.log):
        print(f"  {path}")


def read(arguments, run):
    """Documents to train on, held-out examples and the tokenizer."""
    train, held_out = documents.find(arguments)
    run.claim(arguments, train.describe())
    tokenizer = tokenizing.load_or_train(
        arguments.tokenizer,
        arguments.vocabulary_size,
        documents.some(train, arguments.tokenizer_documents),
        run.tokenizer,
    )
    examples = held_out_examples(
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


def make_training(arguments, run, shape, train, held_out, tokenizer):
    """The `Training` of a new model, or as its last checkpoint left it."""
    if arguments.data_parallel:
        devices.use_all(arguments.batch_size)
    model, gates = make_model(arguments, shape, tokenizer.vocabulary_size)
    batches = training_batches(
        train,
        tokenizer,
        arguments.length,
        arguments.batch_size,
        arguments.seed,
        arguments.shuffle_buffer,
    )
    checkpoints = Checkpoints(run.checkpoints)
    return Training(
        model, gates, batches, held_out, make_plan(arguments), checkpoints
    )


def report(arguments, shape, patterns, vocabulary_size):
    print(f"  attention: {attention_options.describe(arguments)}")
    for line in budget.report(arguments, shape, patterns, vocabulary_size):
        print(f"  {line}")


def make_model(arguments, shape, vocabulary_size):
    """The compiled model and the gates of its attention."""
    keras.utils.set_random_seed(arguments.seed)
    model = build_model(shape, vocabulary_size, arguments.dtype)
    gates = swap_attention(arguments, model)
    compile_for_training(
        model,
        steps=arguments.steps,
        warmup_steps=arguments.warmup_steps,
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        global_clipnorm=arguments.clipnorm,
        accumulation=arguments.accumulation,
    )
    return model, gates


def swap_attention(arguments, model):
    """Puts the attention in; returns its gates, if it has any."""
    options = attention_options.swap_options(arguments)
    if not options:
        return []
    try:
        swap = hub.swap_attention(model, seed=arguments.seed, **options)
    except ValueError as error:
        raise SystemExit(f"--pattern: {error}") from error
    return swap.gates


def make_plan(arguments):
    return Plan(
        steps=arguments.steps,
        log_every=arguments.log_every,
        evaluate_every=arguments.evaluate_every,
        checkpoint_every=arguments.checkpoint_every,
        batch_size=arguments.batch_size,
        accumulation=arguments.accumulation,
        tokens_per_step=budget.tokens_per_step(arguments),
    )


def make_logs(arguments, run, training):
    """The logs, that of CSV first."""
    yield CsvLog(run.log, training.num_gates, training.log_size)
    yield Progress(arguments.steps)
    if arguments.tensorboard:
        yield TensorBoardLog(run.tensorboard, training.step)


def summarize(arguments, training):
    return {
        "attention": attention_options.describe(arguments),
        "parameters": training.model.count_params(),
        "steps": training.step,
        "tokens": training.step * training.plan.tokens_per_step,
        "held_out_loss": training.held_out_loss,
        "held_out_tokens": training.held_out[1].size,
        "held_out_loss_by_quarter_of_context": loss_by_context(
            arguments, training
        ),
        **gates_of(training),
        "seconds_of_training": round(training.seconds, 1),
        "backend": keras.config.backend(),
        "keras": keras.version(),
    }


def loss_by_context(arguments, training):
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
