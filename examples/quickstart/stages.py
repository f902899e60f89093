"""The five stages of the quickstart."""

import keras
import numpy as np

from examples.quickstart import report
from examples.quickstart.report import Result
from examples.shared import byte_text
from examples.shared import language_model
from examples.shared import small_model
from examples.shared.attentions import TRAINING_FREE
from examples.shared.attentions import pattern_at
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.command_line import elapsed
from keras_sa import hub
from keras_sa.patterns import Full

COMPARED = [name for name in TRAINING_FREE if name != "full"]
VERIFIED = SAMPLED = "small_world_softmax"  # has windows of both kinds
FINE_TUNED = ("full", "sliding_window", "small_world")
EVALUATION_BATCH_SIZE = 8
STAGES = 5


def main(arguments):
    check_visible_keys(arguments)
    keras.utils.set_random_seed(arguments.seed)
    announce(1, STAGES, "Loading the model and the text")
    model = language_model.load(arguments)
    train, held_out = read_tokens(arguments, model)
    rng = np.random.default_rng(arguments.seed)
    examples = model.draw(held_out, arguments.sequences, arguments.length, rng)
    no_context = byte_text.frequency_loss(
        train, examples[1], model.causal_lm.backbone.vocabulary_size
    )
    print(
        f"  {model.causal_lm.count_params():,} parameters; "
        f"{examples[1].size:,} held-out tokens are measured\n"
        f"  token frequencies alone: {no_context:.4f} nats per token"
    )

    announce(2, STAGES, f"Checking the swap: {VERIFIED} over everything")
    check_swap(arguments, model)
    print("  computes what full attention does")

    announce(3, STAGES, "Swapping the attention, without training")
    results = compare(arguments, model, examples)

    announce(4, STAGES, f"Fine-tuning, {arguments.steps} steps each")
    trained_weights = model.causal_lm.get_weights()
    num_sequences = arguments.steps * small_model.BATCH_SIZE
    more = model.draw(train, num_sequences, arguments.length, rng)
    fine_tuned = []
    for name in FINE_TUNED:
        fine_tuned.append(
            fine_tune(arguments, model, name, results, more, examples)
        )
        model.causal_lm.set_weights(trained_weights)

    announce(5, STAGES, "Writing a sample with each attention")
    samples = write_samples(arguments, model, results, held_out)
    paths = report.write(arguments, no_context, results, fine_tuned, samples)
    announce_end(paths)


def check_visible_keys(arguments):
    highest = full_keys(arguments)
    if not all(2 <= keys < highest for keys in arguments.visible_keys):
        raise SystemExit(
            f"--visible-keys are expected from 2 to below {highest}, what full "
            f"causal attention shows at --length {arguments.length}. "
            f"Received: {arguments.visible_keys}"
        )


def full_keys(arguments):
    return Full().keys_per_token(arguments.length, is_causal=True)


def read_tokens(arguments, model):
    """To train on and held out."""
    train, held_out = byte_text.read_texts(
        language_model.text_folder(arguments)
    )
    num_train = arguments.steps * small_model.BATCH_SIZE * arguments.length
    num_held_out = arguments.sequences * arguments.length
    return (
        model.encode_some(train, num_train),
        model.encode_some(held_out, num_held_out),
    )


def check_swap(arguments, model):
    """A window over everything must give what full attention gives."""
    pattern = pattern_at(VERIFIED, arguments.visible_keys[0], arguments.length)
    with hub.swap_attention(
        model.causal_lm, pattern, layers=arguments.layers, verify=True
    ):
        pass


def compare(arguments, model, examples):
    """A `Result` for full attention and each other one at each budget."""
    print(f"  time  {report.HEADINGS}")
    todo = [("full", full_keys(arguments))]
    todo += [(n, keys) for keys in arguments.visible_keys for n in COMPARED]
    results = []
    for name, budget in todo:
        results.append(measure(arguments, model, name, budget, examples))
        print(f"  {elapsed()}  {results[-1].summary()}", flush=True)
    return results


def measure(arguments, model, name, budget, examples, gates=()):
    """The `Result` over a few draws of all permutations.

    Args:
        gates: the weights of each gate, if they were trained.
    """
    pattern = pattern_at(name, budget, arguments.length)
    # The same permutations for all attentions.
    num_draws = arguments.permutations if pattern.is_random else 1
    seeds = [1000 * arguments.seed + draw for draw in range(num_draws)]
    with swap_attention(arguments, model, pattern, seeds[0]) as swap:
        for gate, weights in zip(swap.gates, gates):
            gate.set_weights(weights)
        model.compile(arguments.seed)
        losses = []
        for seed in seeds:
            swap.reseed(seed)
            losses.append(model.loss(examples, EVALUATION_BATCH_SIZE))
    keys = pattern.keys_per_token(arguments.length, is_causal=True)
    return Result(name, budget, pattern, keys, losses)


def swap_attention(arguments, model, pattern, seed):
    gated = "gates" in pattern.needs()
    return hub.swap_attention(
        model.causal_lm,
        pattern,
        layers=arguments.layers,
        gate_bias=arguments.gate_bias if gated else None,
        seed=seed,
    )


def fine_tune(arguments, model, name, results, train_examples, examples):
    """The `Result` before and after; the weights stay changed."""
    budget = (
        full_keys(arguments)
        if name == "full"
        else fine_tuning_budget(arguments)
    )
    known = [r for r in results if (r.name, r.budget) == (name, budget)]
    before = (
        known[0] if known else measure(arguments, model, name, budget, examples)
    )
    print(f"  before  {before.summary()}", flush=True)
    with swap_attention(
        arguments, model, before.pattern, arguments.seed
    ) as swap:
        small_model.compile_for_training(
            model.causal_lm, arguments.steps, arguments.learning_rate
        )
        small_model.fit(model.causal_lm, train_examples)
        gates = [gate.get_weights() for gate in swap.gates]
    after = measure(arguments, model, name, budget, examples, gates)
    print(f"  after   {after.summary()}", flush=True)
    return before, after


def fine_tuning_budget(arguments):
    return sorted(arguments.visible_keys)[:2][-1]


def write_samples(arguments, model, results, held_out):
    """The same prompt, continued after a full and after a sparse prefill."""
    prompt, rest = np.split(
        held_out[: arguments.length], [3 * arguments.length // 4]
    )
    *_, sparse = (r for r in results if r.name == SAMPLED)
    samples = {"the prompt's end": model.decode(prompt[-160:])}
    for result in (results[0], sparse):
        with swap_attention(arguments, model, result.pattern, arguments.seed):
            model.compile(arguments.seed)
            # The end of the prompt makes room for a start token.
            written = model.generate(prompt, len(rest), arguments.length)
        title = f"prompt read by {result.name}, {result.visible_keys:.0f} keys"
        samples[title] = model.decode(written)
    samples["what the file says"] = model.decode(rest)
    return samples
