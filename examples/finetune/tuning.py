"""Swaps, trains, keeps, loads and writes."""

import keras
import numpy as np

from examples.finetune import report
from examples.shared import byte_text
from examples.shared import command_line
from examples.shared import language_model
from examples.shared import small_model
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.command_line import elapsed
from examples.shared.language_model import LanguageModel
from keras_sa import hub

STAGES = 5
INTERVALS = 6  # of the steps, with the held-out loss after each
EVALUATION_BATCH_SIZE = 4


def main(arguments):
    pattern = read_pattern(arguments)
    keras.utils.set_random_seed(arguments.seed)
    announce(1, STAGES, "Loading the model and the text")
    model = language_model.load(arguments)
    train, held_out_tokens = read_examples(arguments, model)
    held_out = model.cut(held_out_tokens, arguments.length)
    print(f"  {train[1].size:,} tokens to train on, {held_out[1].size:,} not")

    announce(2, STAGES, f"Swapping in {pattern}")
    model.compile(seed=arguments.seed)
    full_loss = model.loss(held_out, EVALUATION_BATCH_SIZE)
    print(f"  held-out loss, full attention: {full_loss:.4f} nats per token")
    swap_attention(arguments, model.causal_lm, pattern)
    before = model.loss(held_out, EVALUATION_BATCH_SIZE)
    print(f"  held-out loss, {pattern}: {before:.4f}")

    choose_what_to_train(arguments, model.causal_lm)
    announce(3, STAGES, f"Fine-tuning {count_trainable(model):,} parameters")
    curve = fine_tune(arguments, model, train, held_out)
    after = curve.held_out[-1]

    announce(4, STAGES, "Saving and loading")
    preset = arguments.output / "preset"
    save(model, preset)
    loaded = LanguageModel(hub.from_preset(preset, dtype=arguments.dtype))
    loaded.compile(seed=arguments.seed)
    check_equal(arguments, loaded.loss(held_out, EVALUATION_BATCH_SIZE), after)
    print(f"  {preset} has the loss of the model: {after:.4f}")

    announce(5, STAGES, "Writing with the loaded model")
    written = loaded.generate(
        held_out_tokens, arguments.max_new_tokens, arguments.length
    )
    sample = loaded.decode(written)
    paths = report.write(
        arguments.output, pattern, full_loss, before, curve, sample
    )
    announce_end([*paths, preset])


def read_pattern(arguments):
    (pattern,) = command_line.read_patterns("--pattern", [arguments.pattern])
    if arguments.only_gates and "gates" not in pattern.needs():
        raise SystemExit(
            "--only-gates expects a --pattern with gates, such as "
            "'Stochastic(32) + SlidingWindow(32)'. "
            f"Received: --only-gates --pattern {arguments.pattern!r}"
        )
    return pattern


def read_examples(arguments, model):
    """Examples to train on, drawn at random, and the held-out tokens."""
    train, held_out = byte_text.read_texts(
        language_model.text_folder(arguments)
    )
    num_sequences = arguments.steps * arguments.batch_size
    examples = model.draw(
        model.encode_some(train, num_sequences * arguments.length),
        num_sequences,
        arguments.length,
        np.random.default_rng(arguments.seed),
    )
    num_held_out = arguments.sequences * arguments.length + 1
    held_out = model.encode_some(held_out, num_held_out)[:num_held_out]
    return examples, held_out


def swap_attention(arguments, causal_lm, pattern):
    hub.swap_attention(
        causal_lm,
        pattern,
        # It learns to do without the rest: no step has to read all of it.
        decode="pattern",
        layers=arguments.layers,
        seed=arguments.seed,
    )


def choose_what_to_train(arguments, causal_lm):
    if arguments.only_gates:
        hub.train_only_gates(causal_lm)
    else:
        causal_lm.backbone.enable_lora(arguments.rank)


def count_trainable(model):
    shapes = [v.shape for v in model.causal_lm.trainable_variables]
    return sum(int(np.prod(shape)) for shape in shapes)


class Curve(keras.callbacks.Callback):
    """The loss of each step, and the held-out losses between them."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.train, self.held_out, self.held_out_steps = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.total = 0.0

    def on_train_batch_end(self, batch, logs=None):
        # Keras reports the mean since the start of the epoch.
        total = float(logs["loss"]) * (batch + 1)
        self.train.append(total - self.total)
        self.total = total

    def add_held_out(self, loss):
        self.held_out.append(loss)
        self.held_out_steps.append(len(self.train))
        print(
            f"  step {len(self.train):4d} of {self.steps}  {elapsed()}  "
            f"held-out loss {loss:.4f}",
            flush=True,
        )


def fine_tune(arguments, model, train, held_out):
    """Trains on all examples once; returns the `Curve`."""
    small_model.compile_for_training(
        model.causal_lm, arguments.steps, arguments.learning_rate
    )
    curve = Curve(arguments.steps)
    for examples in split(arguments, train):
        model.causal_lm.fit(
            *examples,
            batch_size=arguments.batch_size,
            shuffle=False,  # they were drawn at random
            verbose=0,
            callbacks=[curve],
        )
        curve.add_held_out(model.loss(held_out, EVALUATION_BATCH_SIZE))
    return curve


def split(arguments, examples):
    """The examples of each interval, in whole batches."""
    num_intervals = min(INTERVALS, arguments.steps)
    steps = np.linspace(0, arguments.steps, num_intervals + 1, dtype=int)
    for first, last in zip(steps, steps[1:]):
        part = slice(first * arguments.batch_size, last * arguments.batch_size)
        yield keras.tree.map_structure(lambda x, part=part: x[part], examples)


def save(model, preset):
    """With its preprocessor, which a preset has to have for text."""
    model.causal_lm.preprocessor = model.preprocessor
    hub.save_to_preset(model.causal_lm, preset)
    model.causal_lm.preprocessor = None


def check_equal(arguments, loaded_loss, loss):
    # Saving adds the LoRA weights to the others: that rounds.
    tolerance = 1e-3 if arguments.dtype in (None, "float32") else 2e-2
    if not abs(loaded_loss - loss) < tolerance:
        raise SystemExit(
            f"The loaded model is expected to have the loss of the saved one, "
            f"{loss:.4f}. Received: {loaded_loss:.4f}"
        )
