"""Sparse attention in a model that was trained with full attention.

    python examples/training_free_inference.py
    python examples/training_free_inference.py --preset qwen3_0.6b_en \\
        --dtype bfloat16 --length 4096 --windows 256 512 --file book.txt

Swaps the attention of a KerasHub model, trains nothing, and reports for each
mode and window: visible keys per token, the loss on a text, the time of
reading a prompt and of a new token, and how the text goes on. A prompt is read
sparsely; new tokens attend to all of it.

Without --preset the model is the small one of bytes in tiny_model.
"""

import pathlib

import command_line

MODES = (
    "full",
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world",
    "block_routed",
)


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    command_line.add_model_arguments(parser)
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", help="text whose loss is measured and whose end goes on"
    )
    source.add_argument(
        "--file",
        type=pathlib.Path,
        help="the same, in a file; default: the held-out files of --text",
    )
    add("--modes", nargs="+", default=MODES, choices=MODES)
    add("--windows", type=int, nargs="+", default=[32, 128])
    add("--top-k", type=int, default=3, help="blocks of block_routed")
    add("--sequences", type=int, default=16, help="of the text, at most")
    add("--max-new-tokens", type=int, default=64)
    add("--runs", type=int, default=5, help="of which times are the median")
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/training_free"),
    )
    return command_line.parse(parser)


arguments = parse_arguments()

# ruff: noqa: E402
import statistics
import time

import byte_text
import keras
import language_model
import numpy as np
import training_free_report
from command_line import announce
from command_line import elapsed
from training_free_report import Row
from visible_keys import visible_keys

from keras_sa import hub

STAGES = 4
SHOWN_TOKENS = 160  # of the prompt


def main():
    keras.utils.set_random_seed(arguments.seed)
    announce(1, STAGES, "Loading the model")
    model = language_model.load(arguments)

    announce(2, STAGES, "Reading the text")
    tokens = read_tokens(model)
    length = min(arguments.length, len(tokens) + len(model.start_tokens) - 1)
    check_arguments(length)
    examples = model.cut(tokens, length)
    print(f"  {examples[1].size:,} tokens, in sequences of {length}")

    announce(3, STAGES, "Swapping the attention, without training")
    rows = []
    for name, options in attentions():
        with hub.swap_attention(
            model.causal_lm,
            layers=arguments.layers,
            seed=arguments.seed,
            **options,
        ):
            row = Row(
                name,
                training_free_report.describe(options),
                visible_keys(length, **options),
                **measure(model, examples, tokens, length),
            )
        rows.append(row)
        print(f"  {elapsed()}  {row.summary()}", flush=True)

    announce(4, STAGES, "Writing the report")
    samples = {"the end of the prompt": tokens[-SHOWN_TOKENS:]}
    samples |= {str(row): row.written for row in rows}
    paths = training_free_report.write(
        arguments.output,
        rows,
        examples[1].size,
        length,
        {name: model.decode(sample) for name, sample in samples.items()},
    )
    print(f"Done in {elapsed()} minutes. Written:")
    for path in paths:
        print(f"  {path}")


def read_tokens(model):
    """The tokens to measure: no more than --sequences of them."""
    num_tokens = arguments.sequences * arguments.length + 1
    return model.encode_some(read_text(), num_tokens)[:num_tokens]


def read_text():
    if arguments.prompt is not None:
        return np.frombuffer(arguments.prompt.encode(), "uint8")
    if arguments.file is not None:
        return np.frombuffer(arguments.file.read_bytes(), "uint8")
    _, held_out = byte_text.read_texts(language_model.text_folder(arguments))
    return held_out


def check_arguments(length):
    if not 2 <= arguments.max_new_tokens < length:
        raise SystemExit(
            "--max-new-tokens is expected from 2 to below the length of a "
            f"sequence, {length}: the shorter of --length and the text. "
            f"Received: {arguments.max_new_tokens}"
        )


def attentions():
    """Names and options of the swaps; full attention first, to compare with."""
    yield "full", {"mode": "full"}
    for window_size in arguments.windows:
        for name in arguments.modes:
            if name != "full":
                yield name, options_of(name, window_size)


def options_of(name, window_size):
    """The options of `hub.swap_attention` for one row of the table."""
    if name == "block_routed":
        # The blocks that a token reads hold as much as a window.
        block_size = -(-window_size // arguments.top_k)
        return {
            "mode": name,
            "block_size": block_size,
            "top_k": arguments.top_k,
        }
    options = {"mode": name, "window_size": window_size}
    if name == "stochastic_block":
        options |= {"mode": "stochastic", "neighborhood": "block"}
    if name == "small_world":
        options["merge"] = "softmax"  # gates would have to be trained
    return options


def measure(model, examples, tokens, length):
    """Loss, times and a continuation, under the attention of the moment."""
    model.compile(arguments.seed)
    loss = model.loss(examples)
    num_new = arguments.max_new_tokens
    written = model.generate(tokens, num_new, length)  # and compile
    prefill, step = time_generation(model, tokens, num_new, length)
    return {
        "loss": loss,
        "prefill_seconds": prefill,
        "step_seconds": step,
        "written": written,
    }


def time_generation(model, tokens, num_new, length):
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


if __name__ == "__main__":
    main()
