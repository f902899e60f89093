"""Watch stochastic attention work, on the source text of Python itself.

    python examples/quickstart.py
    python examples/quickstart.py --backend torch --text ~/notes --minutes 10

1. Trains a small KerasHub language model of bytes with full attention.
2. Swaps its attention, without training, for sparse ones, and compares the
   loss on held-out files at equal numbers of visible keys per token.
3. Fine-tunes the gated small world, and the sliding window beside it.

Writes `table.md`, `loss_against_visible_keys.png` and `samples.txt`.
The data is in byte_text.py, the model in small_model.py, the attentions in
quickstart_patterns.py, the table and the plot in quickstart_report.py.
"""

import pathlib

import command_line


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    add = parser.add_argument
    add(
        "--minutes",
        type=float,
        default=3.0,
        help="of training, roughly, on 2 CPU cores with JAX; it sets the "
        "number of steps, so the same value gives the same result anywhere",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/quickstart"),
    )
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
    add(
        "--gate-bias",
        type=float,
        nargs=2,
        metavar=("STOCHASTIC", "LOCAL"),
        help="where the gates start; default: that of hub.swap_attention",
    )
    return command_line.parse(parser)


arguments = parse_arguments()

# ruff: noqa: E402
import byte_text
import keras
import numpy as np
import quickstart_report
import small_model
from command_line import announce
from command_line import elapsed
from language_model import LanguageModel
from quickstart_patterns import ATTENTIONS
from quickstart_patterns import FINE_TUNED
from quickstart_patterns import SMALL_WORLD
from quickstart_patterns import is_random
from quickstart_report import Result
from visible_keys import visible_keys

from keras_sa import hub

EVALUATION_BATCH_SIZE = 8
NUM_HELD_OUT_SEQUENCES = 40  # a multiple of the batch: one compiled shape
FINE_TUNING_SHARE = 0.12  # of --minutes, for each of two models
FINE_TUNING_RATE = 2e-3
STAGES = 6


def main():
    check_arguments()
    keras.utils.set_random_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    training_steps, fine_tuning_steps = numbers_of_steps()

    folder = arguments.text or byte_text.standard_library()
    announce(1, STAGES, f"Reading {folder}")
    train, held_out = byte_text.read_texts(folder)
    examples = cut_examples(held_out, NUM_HELD_OUT_SEQUENCES, rng)
    no_context = byte_text.byte_frequency_loss(train, examples[1])
    print(
        f"  {len(train):,} bytes to train on, {len(held_out):,} in held-out "
        f"files; {examples[1].size:,} held-out bytes are measured\n"
        f"  a model without context would lose {no_context:.3f} nats per byte"
    )

    causal_lm = small_model.build()
    num_parameters = causal_lm.count_params()
    announce(2, STAGES, f"Checking the swap in {num_parameters:,} parameters")
    check_swaps(causal_lm)

    announce(3, STAGES, f"Training with full attention, {training_steps} steps")
    model = train_model(causal_lm, train, training_steps, rng)
    full_loss = model.loss(examples, EVALUATION_BATCH_SIZE)
    print(f"  held-out loss, full attention: {full_loss:.4f} nats per byte")

    announce(4, STAGES, "Swapping the attention, without training")
    results = compare(model, examples)

    announce(
        5,
        STAGES,
        f"Fine-tuning two sparse models, {fine_tuning_steps} steps each",
    )
    trained_weights = causal_lm.get_weights()
    num_sequences = fine_tuning_steps * small_model.BATCH_SIZE
    more = cut_examples(train, num_sequences, rng)
    fine_tuned = []
    for name in FINE_TUNED:
        causal_lm.set_weights(trained_weights)
        fine_tuned.append(fine_tune(model, name, more, examples))

    announce(6, STAGES, "Writing a sample with each attention")
    causal_lm.set_weights(trained_weights)
    samples = generate_samples(model, results, examples[0]["token_ids"][0])

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


def numbers_of_steps():
    """Of training and of each fine-tuning."""
    total = max(20, round(arguments.minutes * small_model.STEPS_PER_MINUTE))
    fine_tuning = max(5, round(FINE_TUNING_SHARE * total))
    return total - 2 * fine_tuning, fine_tuning


def cut_examples(source, num_sequences, rng):
    # One token more: the target of the last.
    return byte_text.as_examples(
        byte_text.cut_sequences(
            source, num_sequences, arguments.length + 1, rng
        )
    )


def check_swaps(causal_lm):
    """A window over everything must give what full attention gives."""
    for at in ATTENTIONS.values():
        options = at(arguments.visible_keys[0], arguments.length)
        with hub.swap_attention(causal_lm, verify=True, **options):
            pass
    print(f"  {len(ATTENTIONS)} attentions over everything: as the full")


def train_model(causal_lm, text, steps, rng):
    """The `LanguageModel`, with the attention that it has."""
    small_model.compile_for_training(causal_lm, steps)
    num_sequences = steps * small_model.BATCH_SIZE
    small_model.fit(causal_lm, cut_examples(text, num_sequences, rng))
    model = LanguageModel(causal_lm)
    model.compile(arguments.seed)
    return model


def losses_over_permutations(model, options, examples, gates=()):
    """The held-out loss for each of a few draws of all permutations.

    Args:
        gates: the weights of each gate, if they were trained.
    """
    # The same permutations for all patterns.
    seeds = range(arguments.permutations if is_random(options) else 1)
    losses = []
    for seed in seeds:
        seed += 1000 * arguments.seed
        with swap_attention(model, options, seed) as swap:
            for gate, weights in zip(swap.gates, gates):
                gate.set_weights(weights)
            losses.append(model.loss(examples, EVALUATION_BATCH_SIZE))
    return losses


def compare(model, examples):
    """A `Result` for each attention at each budget."""
    results = []
    print(f"  held-out loss of: {'; '.join(ATTENTIONS)}")
    for budget in arguments.visible_keys:
        for name, at in ATTENTIONS.items():
            options = at(budget, arguments.length)
            losses = losses_over_permutations(model, options, examples)
            results.append(make_result(name, budget, options, losses))
        line = "  ".join(f"{r.mean:.3f}" for r in results[-len(ATTENTIONS) :])
        print(f"  {budget:4d} visible keys  {elapsed()}  {line}", flush=True)
    return results


def make_result(name, budget, options, losses):
    keys = visible_keys(arguments.length, **options)
    return Result(name, budget, options, keys, losses)


def fine_tune(model, name, train_examples, examples):
    """The `Result` before and after."""
    budget = fine_tuning_budget()
    options = FINE_TUNED[name](budget, arguments.length)
    _, steps = numbers_of_steps()
    losses = losses_over_permutations(model, options, examples)
    before = make_result(name, budget, options, losses)
    print(f"  {name}, {before.visible_keys:.1f} visible keys")
    print(f"  before: held-out loss {before.mean:.4f}", flush=True)
    with swap_attention(model, options, arguments.seed) as swap:
        small_model.compile_for_training(
            model.causal_lm, steps, FINE_TUNING_RATE
        )
        small_model.fit(model.causal_lm, train_examples)
        gates = [gate.get_weights() for gate in swap.gates]
    losses = losses_over_permutations(model, options, examples, gates)
    after = make_result(name, budget, options, losses)
    print(f"  after: held-out loss {after.mean:.4f}", flush=True)
    return before, after


def swap_attention(model, options, seed):
    if arguments.gate_bias:
        options = {**options, "gate_bias": arguments.gate_bias}
    return hub.swap_attention(model.causal_lm, seed=seed, **options)


def fine_tuning_budget():
    budgets = sorted(arguments.visible_keys)
    return budgets[min(1, len(budgets) - 1)]


def generate_samples(model, results, tokens):
    """The same prompt, continued after a full and after a sparse prefill."""
    prompt_length = 3 * arguments.length // 4
    prompt, rest = tokens[:prompt_length], tokens[prompt_length:]
    sparse = [r for r in results if r.name == SMALL_WORLD][-1]
    keys = f"{sparse.visible_keys:.0f} visible keys"
    samples = {"the prompt's end": model.decode(prompt[-160:])}
    for name, options in (
        ("full attention", {"mode": "full"}),
        (f"prompt read by the {sparse.name} ({keys})", sparse.options),
    ):
        model.compile(arguments.seed)
        with hub.swap_attention(
            model.causal_lm, seed=arguments.seed, **options
        ):
            written = model.generate(prompt, len(rest), arguments.length)
        samples[name] = model.decode(written)
    samples["what the file says"] = model.decode(rest)
    return samples


if __name__ == "__main__":
    main()
