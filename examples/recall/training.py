"""Trains a model for each attention and seed, and measures its recall."""

import time

import keras

from examples.recall import report
from examples.recall.tasks import TASKS
from examples.shared import small_model
from examples.shared.attentions import ATTENTIONS
from examples.shared.attentions import pattern_at
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.kept_runs import KeptRuns
from examples.shared.kept_runs import Run
from keras_sa import evaluation
from keras_sa import hub

EVALUATION_SEED = 2**31  # apart from the seeds of training
EVALUATION_BATCH_SIZE = 50
# Of the command line: what else a run depends on.
NOT_OF_A_RUN = ("attentions", "seeds", "output")


def main(arguments):
    settings = {
        name: value
        for name, value in vars(arguments).items()
        if name not in NOT_OF_A_RUN
    }
    runs = KeptRuns(arguments.output / "runs.json", settings)
    todo = [
        {"attention": attention, "seed": seed}
        for seed in arguments.seeds
        for attention in arguments.attentions
    ]
    measured = make_examples(
        arguments, arguments.num_examples, arguments.length, EVALUATION_SEED
    )
    for number, of_run in enumerate(todo, start=1):
        announce(number, len(todo), "{attention}, seed {seed}".format(**of_run))
        run = runs.find(**of_run)
        if run is None:
            run = train_and_measure(arguments, **of_run, measured=measured)
            runs.add(run)
        print(f"  {report.summarize(run)}", flush=True)

    paths = report.write(
        arguments, [runs.find(**of_run) for of_run in todo], measured
    )
    announce_end([runs.path, *paths])


def make_examples(arguments, num_examples, length, seed):
    task = TASKS[arguments.task]
    return task.examples(arguments, num_examples, length, seed)


def train_and_measure(arguments, attention, seed, measured):
    """A `Run`: the model is trained with the attention it is measured with."""
    start = time.monotonic()
    keras.utils.set_random_seed(seed)
    model = small_model.build(
        vocabulary_size=arguments.vocabulary_size,
        num_layers=arguments.num_layers,
        hidden_dim=arguments.hidden_dim,
        intermediate_dim=2 * arguments.hidden_dim,
    )
    pattern = pattern_at(attention, arguments.visible_keys, arguments.length)
    swap_attention(arguments, model, attention, pattern, seed)
    train(arguments, model, seed)
    accuracy = evaluation.evaluate_task(
        model, measured, EVALUATION_BATCH_SIZE, arguments.buckets
    )
    return Run(
        attention=attention,
        seed=seed,
        pattern=pattern,
        visible_keys=pattern.keys_per_token(arguments.length, is_causal=True),
        seconds=time.monotonic() - start,
        measured={
            "accuracy": [bucket.accuracy for bucket in accuracy],
            "count": [bucket.count for bucket in accuracy],
        },
    )


def swap_attention(arguments, model, attention, pattern, seed):
    bias = None
    if ATTENTIONS[attention].gated:
        bias = arguments.gate_bias[-len(pattern.terms) :]
    hub.swap_attention(
        model,
        pattern,
        resample=ATTENTIONS[attention].resample or arguments.resample,
        gate_bias=bias,
        seed=seed,
    )


def train(arguments, model, seed):
    """On short sequences, then on long ones."""
    if arguments.short_steps:
        shortest = TASKS[arguments.task].shortest(arguments)
        fit(arguments, model, shortest, arguments.short_steps, seed)
    fit(arguments, model, arguments.length, arguments.steps, seed)


def fit(arguments, model, length, steps, seed):
    batch_size = max(1, arguments.tokens_per_batch // length)
    small_model.compile_for_training(model, steps, arguments.learning_rate)
    model.fit(
        **make_examples(
            arguments, steps * batch_size, length, seed
        ).as_fit_arguments(),
        batch_size=batch_size,
        shuffle=False,  # they were drawn at random
        verbose=0,
        callbacks=[small_model.Progress()],
    )
