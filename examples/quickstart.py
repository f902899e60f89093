"""Watch stochastic attention work, on the source text of Python itself.

    python examples/quickstart.py
    python examples/quickstart.py --backend torch --text ~/notes --minutes 10

1. Trains a small KerasHub language model of bytes with full attention.
2. Swaps its attention, without training, for sparse ones, and compares the
   loss on held-out files at equal numbers of visible keys per token.
3. Fine-tunes the gated small world, and the sliding window beside it.

Writes `table.md`, `loss_against_visible_keys.png` and `samples.txt`.
The data is in quickstart_text.py, the swap in quickstart_swap.py, the table
and the plot in quickstart_report.py.
"""

import argparse
import os
import pathlib
import time


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--backend",
        default=os.environ.get("KERAS_BACKEND", "jax"),
        choices=("jax", "torch", "tensorflow"),
        help="default: KERAS_BACKEND, else jax",
    )
    add("--seed", type=int, default=0)
    add(
        "--minutes",
        type=float,
        default=3.0,
        help="of training, roughly, on 2 CPU cores with JAX; it sets the "
        "number of steps, so the same value gives the same result anywhere",
    )
    add(
        "--text",
        type=pathlib.Path,
        help="a folder of text files; default: Python's standard library",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/quickstart"),
    )
    add("--length", type=int, default=512, help="tokens of a sequence")
    add(
        "--visible-keys",
        type=int,
        nargs="+",
        default=[16, 32, 64, 128],
        help="per token: the budgets to compare at",
    )
    add(
        "--permutations",
        type=int,
        default=3,
        help="draws per random pattern, for the spread",
    )
    return parser.parse_args()


arguments = parse_arguments()
# Keras chooses its backend when it is imported, so the command line comes
# first.
os.environ["KERAS_BACKEND"] = arguments.backend
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# ruff: noqa: E402
import keras
import keras_hub
import numpy as np
import quickstart_report
import quickstart_swap as swap
import quickstart_text as text
from quickstart_report import SLIDING_WINDOW
from quickstart_report import Result
from quickstart_swap import FULL
from quickstart_swap import Pattern

from keras_sa.ops import patterns

BATCH_SIZE = 2  # small batches learn most per byte read
EVALUATION_BATCH_SIZE = 8
NUM_HELD_OUT_SEQUENCES = 40  # a multiple of the batch: one compiled shape
STEPS_PER_MINUTE = 600
FINE_TUNING_SHARE = 0.12  # of --minutes, for each of two models
MOBA_TOP_K = 3
STAGES = 6
START = time.monotonic()


def main():
    check_arguments()
    keras.utils.set_random_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    total_steps = max(20, round(arguments.minutes * STEPS_PER_MINUTE))
    fine_tuning_steps = max(5, round(FINE_TUNING_SHARE * total_steps))
    training_steps = total_steps - 2 * fine_tuning_steps

    folder = arguments.text or text.standard_library()
    announce(1, f"Reading {folder}")
    train, held_out = text.read_texts(folder)
    examples = cut_examples(held_out, NUM_HELD_OUT_SEQUENCES, rng)
    no_context = text.byte_frequency_loss(train, examples[1])
    print(
        f"  {len(train):,} bytes to train on, {len(held_out):,} in held-out "
        f"files; {examples[1].size:,} held-out bytes are measured\n"
        f"  a model without context would lose {no_context:.3f} nats per byte"
    )

    model = build_model()
    swap.install(model)
    announce(2, f"Checking the swap in {model.count_params():,} parameters")
    check_swap(model, examples)

    announce(3, f"Training with full attention, {training_steps} steps")
    compile_model(model, training_steps, learning_rate=6e-3)
    fit(model, cut_examples(train, training_steps * BATCH_SIZE, rng))
    full_loss = held_out_loss(model, FULL, examples)
    print(f"  held-out loss, full attention: {full_loss:.4f} nats per byte")

    announce(4, "Swapping the attention, without training")
    results = compare(model, examples, rng)

    announce(
        5, f"Fine-tuning two sparse models, {fine_tuning_steps} steps each"
    )
    trained_weights = model.get_weights()
    more = cut_examples(train, fine_tuning_steps * BATCH_SIZE, rng)
    fine_tuned = fine_tune(model, more, examples, fine_tuning_steps)

    announce(6, "Writing a sample with each attention")
    model.set_weights(trained_weights)
    samples = generate_samples(model, results, examples[0]["token_ids"])

    paths = quickstart_report.write(
        arguments, no_context, full_loss, results, fine_tuned, samples
    )
    print(f"Done in {elapsed()} minutes. Written:")
    for path in paths:
        print(f"  {path}")


def check_arguments():
    highest = (arguments.length + 1) / 2
    if not all(2 <= keys < highest for keys in arguments.visible_keys):
        raise SystemExit(
            f"--visible-keys are expected from 2 to below {highest}, what full "
            f"causal attention shows at --length {arguments.length}. "
            f"Received: {arguments.visible_keys}"
        )


def announce(stage, what):
    print(f"[{stage}/{STAGES}  {elapsed()}] {what}", flush=True)


def elapsed():
    minutes, seconds = divmod(int(time.monotonic() - START), 60)
    return f"{minutes}:{seconds:02d}"


# Model and training


def cut_examples(source, num_sequences, rng):
    return text.as_examples(
        # One token more: the target of the last.
        text.cut_sequences(source, num_sequences, arguments.length + 1, rng)
    )


def build_model():
    """Any KerasHub decoder would do; a tokenizer is not needed for bytes."""
    backbone = keras_hub.models.Qwen3Backbone(
        vocabulary_size=text.VOCABULARY_SIZE,
        num_layers=3,
        num_query_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        hidden_dim=128,
        intermediate_dim=256,
    )
    return keras_hub.models.Qwen3CausalLM(backbone=backbone, preprocessor=None)


def compile_model(model, steps, learning_rate):
    """AdamW, a warm-up, a cosine, and a limit on the gradient's norm."""
    warmup_steps = max(1, min(30, steps // 5))
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=learning_rate,
        warmup_steps=warmup_steps,
        decay_steps=max(1, steps - warmup_steps),
        alpha=0.05,
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(
            schedule, weight_decay=0.05, beta_2=0.95, global_clipnorm=1.0
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=None,
        sampler=keras_hub.samplers.TopKSampler(
            k=10, temperature=0.5, seed=arguments.seed
        ),
    )


class Progress(keras.callbacks.Callback):
    """Prints the step, the time and the loss of the steps since the last."""

    def on_epoch_begin(self, epoch, logs=None):
        self.seen, self.total = 0, 0.0

    def on_train_batch_end(self, batch, logs=None):
        step, steps = batch + 1, self.params["steps"]
        if step % max(1, steps // 10) and step != steps:
            return
        # Keras reports the mean since the start of the epoch.
        total = float(logs["loss"]) * step
        recent = (total - self.total) / (step - self.seen)
        self.seen, self.total = step, total
        print(
            f"  step {step:4d} of {steps}  {elapsed()}  loss {recent:.3f}",
            flush=True,
        )


def fit(model, examples):
    model.fit(
        *examples,
        batch_size=BATCH_SIZE,
        shuffle=False,  # they were drawn at random
        verbose=0,
        callbacks=[Progress()],
    )


def held_out_loss(model, pattern, examples):
    """Nats per byte: total loss over total bytes."""
    if pattern != model.sparse_attentions[0].pattern:
        swap.use_pattern(model, pattern)
    logs = model.evaluate(
        *examples,
        batch_size=EVALUATION_BATCH_SIZE,
        verbose=0,
        return_dict=True,
    )
    return float(logs["loss"])


def losses_over_permutations(model, pattern, examples, seed=0):
    """The loss for each of a few draws of all the layers' permutations."""
    if not pattern.is_random:
        return [held_out_loss(model, pattern, examples)]
    rng = np.random.default_rng((arguments.seed, seed))
    losses = []
    for _ in range(arguments.permutations):
        swap.draw_permutations(model, rng)
        losses.append(held_out_loss(model, pattern, examples))
    return losses


# The swap at equal visible keys


def check_swap(model, examples):
    """A window over everything must give what full attention gives."""
    length = min(64, arguments.length)
    tokens = examples[0]["token_ids"][:1, :length]
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}

    def logits(pattern):
        swap.use_pattern(model, pattern)
        return model.predict(inputs, verbose=0)

    full = logits(FULL)
    over_everything = [
        Pattern("sliding_window", length),
        Pattern("stochastic", 2 * length),
        Pattern("stochastic", length, neighborhood="block"),
        Pattern("small_world", 2 * length, local_window_size=4),
        Pattern("block_routed", length, top_k=1),
    ]
    for pattern in over_everything:
        error = np.abs(logits(pattern) - full).max()
        if not error < 1e-4:
            raise SystemExit(
                "A window over everything is expected to give the logits of "
                f"full attention. Received: a difference of {error:.2g} for "
                f"{pattern}. The installed keras_hub {keras_hub.__version__} "
                "may call its attention in another way; 0.32 works."
            )
    narrow = np.abs(logits(Pattern("sliding_window", 1)) - full).max()
    if not narrow > 1e-3:
        raise SystemExit(
            "A window of one token is expected to change the logits. "
            f"Received: a difference of {narrow:.2g}; the swap has no effect."
        )
    swap.use_pattern(model, FULL)
    print(f"  {len(over_everything)} attentions over everything: as the full")


def closest(budget, visible_keys, largest):
    """The window whose mean visible keys per token are next to the budget."""
    window_size = min(
        range(1, largest + 1), key=lambda w: abs(visible_keys(w) - budget)
    )
    return window_size, visible_keys(window_size)


def local_at(budget):
    return closest(
        budget,
        lambda w: patterns.visible_keys_per_token(
            arguments.length, w, "sliding_window", causal=True
        ),
        arguments.length,
    )


def stochastic_keys(window_size, neighborhood="window"):
    return patterns.visible_keys_per_token(
        arguments.length, window_size, "stochastic", neighborhood, causal=True
    )


def sliding_window_at(budget):
    window_size, visible_keys = local_at(budget)
    return Pattern("sliding_window", window_size), visible_keys


def stochastic_at(budget, neighborhood="window"):
    # A causal mask hides about half of a window: it is twice as wide.
    window_size, visible_keys = closest(
        budget,
        lambda w: stochastic_keys(w, neighborhood),
        2 * arguments.length,
    )
    pattern = Pattern("stochastic", window_size, neighborhood=neighborhood)
    return pattern, visible_keys


def small_world_at(budget):
    """Half of the keys are neighbours, the others from everywhere."""
    local_window_size, local_keys = local_at(budget / 2)
    window_size, visible_keys = closest(
        budget,
        lambda w: patterns.union_size(
            arguments.length, stochastic_keys(w), local_keys, causal=True
        ),
        2 * arguments.length,
    )
    pattern = Pattern("small_world", window_size, local_window_size)
    return pattern, visible_keys


def gated_small_world_at(budget):
    """Two softmaxes: a key that both paths see counts twice."""
    local_window_size, local_keys = local_at(budget / 2)
    window_size, keys = closest(
        budget / 2, stochastic_keys, 2 * arguments.length
    )
    pattern = Pattern("gated_small_world", window_size, local_window_size)
    return pattern, local_keys + keys


def block_routed_at(budget):
    block_size, visible_keys = closest(
        budget,
        lambda size: patterns.visible_keys_per_token(
            arguments.length,
            size,
            "block_routed",
            causal=True,
            top_k=MOBA_TOP_K,
        ),
        arguments.length,
    )
    pattern = Pattern("block_routed", block_size, top_k=MOBA_TOP_K)
    return pattern, visible_keys


SMALL_WORLD = "small world, one softmax"
GATED = "small world, gated"
ATTENTIONS = {
    SLIDING_WINDOW: sliding_window_at,
    "stochastic, window": stochastic_at,
    "stochastic, block": lambda budget: stochastic_at(budget, "block"),
    SMALL_WORLD: small_world_at,
    f"MoBA, top {MOBA_TOP_K} blocks": block_routed_at,
}


def compare(model, examples, rng):
    """A `Result` for each attention at each budget."""
    seed = int(rng.integers(2**30))  # the same permutations for all of them
    results = []
    print(f"  held-out loss of: {'; '.join(ATTENTIONS)}")
    for budget in arguments.visible_keys:
        for name, at in ATTENTIONS.items():
            pattern, visible_keys = at(budget)
            losses = losses_over_permutations(model, pattern, examples, seed)
            results.append(Result(name, budget, pattern, visible_keys, losses))
        line = "  ".join(f"{r.mean:.3f}" for r in results[-len(ATTENTIONS) :])
        print(f"  {budget:4d} visible keys  {elapsed()}  {line}", flush=True)
    return results


def fine_tune(model, train_examples, examples, steps):
    """`(before, after)` of both, from the same weights and on the same text."""
    budget = fine_tuning_budget()
    weights = model.get_weights()
    pairs = []
    for name, at in (
        (SLIDING_WINDOW, sliding_window_at),
        (GATED, gated_small_world_at),
    ):
        pattern, visible_keys = at(budget)
        print(f"  {name}, {visible_keys:.1f} visible keys")
        model.set_weights(weights)
        pair = []
        for step in ("before", "after"):
            if step == "after":
                compile_model(model, steps, learning_rate=2e-3)
                fit(model, train_examples)
            losses = losses_over_permutations(model, pattern, examples)
            pair.append(Result(name, budget, pattern, visible_keys, losses))
            print(f"  {step}: held-out loss {pair[-1].mean:.4f}", flush=True)
        if pattern.kind == "gated_small_world":
            print(f"  largest gate weight: {swap.largest_gate(model):.3f}")
        pairs.append(pair)
    return pairs


def fine_tuning_budget():
    budgets = sorted(arguments.visible_keys)
    return budgets[min(1, len(budgets) - 1)]


def generate_samples(model, results, tokens):
    """The same prompt, continued after a full and after a sparse prefill."""
    prompt_length = 3 * arguments.length // 4
    padding_mask = np.arange(arguments.length)[None] < prompt_length  # [1, n]
    prompt = {
        "token_ids": np.where(padding_mask, tokens[:1], 0),
        "padding_mask": padding_mask.astype("int32"),
    }
    sparse = [r for r in results if r.name == SMALL_WORLD][-1]
    keys = f"{sparse.visible_keys:.0f} visible keys"
    samples = {
        "the prompt's end": text.as_text(tokens[0, :prompt_length][-160:])
    }
    for name, pattern in (
        ("full attention", FULL),
        (f"prompt read by the {sparse.name} ({keys})", sparse.pattern),
    ):
        swap.use_pattern(model, pattern, prompt_length)
        output = model.generate(prompt, stop_token_ids=None)
        written = np.asarray(output["token_ids"])[0, prompt_length:]
        samples[name] = text.as_text(written)
    samples["what the file says"] = text.as_text(tokens[0, prompt_length:])
    return samples


if __name__ == "__main__":
    main()
