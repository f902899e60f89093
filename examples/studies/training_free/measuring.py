"""Loss, times and a continuation under every attention."""

import statistics
import time

import keras
import numpy as np

from examples.shared import byte_text
from examples.shared import command_line
from examples.shared import language_model
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.command_line import elapsed
from examples.studies.training_free import report
from examples.studies.training_free.report import Row
from keras_sa import hub
from keras_sa.patterns import Full

STAGES = 4
SHOWN_TOKENS = 160  # of the prompt


def main(arguments):
    patterns = command_line.read_patterns("--patterns", arguments.patterns)
    keras.utils.set_random_seed(arguments.seed)
    announce(1, STAGES, "Loading the model")
    model = language_model.load(arguments)

    announce(2, STAGES, "Reading the text")
    tokens = read_tokens(arguments, model)
    length = min(arguments.length, len(tokens) + len(model.start_tokens) - 1)
    check_arguments(arguments, length)
    examples = model.cut(tokens, length)
    print(f"  {examples[1].size:,} tokens, in sequences of {length}")

    announce(3, STAGES, "Swapping the attention, without training")
    rows = []
    # Full attention first, to compare with.
    for pattern in [Full(), *patterns]:
        with hub.swap_attention(
            model.causal_lm,
            pattern,
            layers=arguments.layers,
            seed=arguments.seed,
        ):
            row = Row(
                pattern,
                pattern.keys_per_token(length, is_causal=True),
                **measure(arguments, model, examples, tokens, length),
            )
        rows.append(row)
        print(f"  {elapsed()}  {row.summary()}", flush=True)

    announce(4, STAGES, "Writing the report")
    samples = {"the end of the prompt": tokens[-SHOWN_TOKENS:]}
    samples |= {str(row): row.written for row in rows}
    paths = report.write(
        arguments.output,
        rows,
        examples[1].size,
        length,
        {name: model.decode(sample) for name, sample in samples.items()},
    )
    announce_end(paths)


def read_tokens(arguments, model):
    """The tokens to measure: no more than --sequences of them."""
    num_tokens = arguments.sequences * arguments.length + 1
    return model.encode_some(read_text(arguments), num_tokens)[:num_tokens]


def read_text(arguments):
    if arguments.prompt is not None:
        return np.frombuffer(arguments.prompt.encode(), "uint8")
    if arguments.file is not None:
        return np.frombuffer(arguments.file.read_bytes(), "uint8")
    _, held_out = byte_text.read_texts(language_model.text_folder(arguments))
    return held_out


def check_arguments(arguments, length):
    if not 2 <= arguments.max_new_tokens < length:
        raise SystemExit(
            "--max-new-tokens is expected from 2 to below the length of a "
            f"sequence, {length}: the shorter of --length and the text. "
            f"Received: {arguments.max_new_tokens}"
        )


def measure(arguments, model, examples, tokens, length):
    """Loss, times and a continuation, under the attention of the moment."""
    model.compile(arguments.seed)
    loss = model.loss(examples)
    num_new = arguments.max_new_tokens
    written = model.generate(tokens, num_new, length)  # and compile
    prefill, step = time_generation(arguments, model, tokens, num_new, length)
    return {
        "loss": loss,
        "prefill_seconds": prefill,
        "step_seconds": step,
        "written": written,
    }


def time_generation(arguments, model, tokens, num_new, length):
    """Seconds to read a prompt and to write one token, medians.

    The prompt fills the cache up to 1 or `num_new` tokens. Both read all of
    the cache, in the same compiled function: they differ by the steps alone.
    """

    def seconds(num_new):
        start = time.perf_counter()
        model.generate(tokens, num_new, length)
        return time.perf_counter() - start

    pairs = [(seconds(1), seconds(num_new)) for _ in range(arguments.runs)]
    short, long = map(statistics.median, zip(*pairs))
    step = (long - short) / (num_new - 1)
    return short - step, step
