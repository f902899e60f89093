"""Compares patterns in a model, or chooses one for each layer."""

import shlex
import sys

import numpy as np

from examples.shared import byte_text
from examples.shared import language_model
from examples.shared.attentions import MOBA_TOP_K
from examples.shared.attentions import closest
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.reports import can_plot
from keras_sa import evaluation
from keras_sa import hub
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


def main(arguments):
    announce(1, 3, "the model and the text")
    model = language_model.load(arguments)
    documents = read_documents(arguments, model)
    announce(2, 3, f"{len(documents)} documents of {arguments.length} tokens")
    print(f"  to go on after a stop: {shlex.join(['python', *sys.argv])}")
    measure = compare if arguments.choose is None else choose
    result, name = measure(arguments, model.causal_lm, documents)
    announce(3, 3, "the report")
    print(f"\n{result}\n")
    folder = arguments.output
    paths = [folder / f"{name}.md", folder / f"{name}.json"]
    paths[0].write_text(f"{result}\n", encoding="utf-8")
    result.save(paths[1])
    if can_plot():
        paths.append(folder / f"{name}.png")
        result.plot(paths[-1])
    announce_end(paths)


def read_documents(arguments, model):
    """int32 `[n + 1]` of files that are long enough, in the order of paths."""
    documents = []
    num_tokens = arguments.length + 1
    folder = language_model.text_folder(arguments)
    for path in byte_text.text_files(folder):
        text = np.frombuffer(byte_text.read_file(path), "uint8")
        tokens = model.encode_some(text, num_tokens)
        if len(tokens) >= num_tokens:
            documents.append(tokens[:num_tokens])
        if len(documents) == arguments.documents:
            return documents
    raise SystemExit(
        f"--documents {arguments.documents} of more than --length "
        f"{arguments.length} tokens are expected in the folder of --text. "
        f"Received: {len(documents)} in {folder}"
    )


def compare(arguments, model, documents):
    comparison = evaluation.compare_patterns(
        model,
        patterns_at(arguments, layers_of(arguments, model)),
        documents,
        arguments.length,
        layers=arguments.layers,
        seed=arguments.seed,
        last_tokens=arguments.last,
        rounds=arguments.rounds,
        path=arguments.output / "measured.json",
    )
    return comparison, "comparison"


def choose(arguments, model, documents):
    chosen = evaluation.choose_patterns(
        model,
        documents,
        arguments.length,
        max_loss_increase=arguments.choose,
        layers=arguments.layers,
        seed=arguments.seed,
        last_tokens=arguments.last,
        path=arguments.output / "trials.json",
    )
    return chosen, "chosen"


def layers_of(arguments, model):
    """Indices of the layers that --layers says."""
    any_pattern = SlidingWindow(1)
    with hub.swap_attention(model, any_pattern, layers=arguments.layers) as x:
        return x.layers


def patterns_at(arguments, layers):
    """`{name: pattern}` at equal visible keys, but for layers that are full.

    A name is a kind; `first`: the first tokens are visible to all; `last`: the
    last tokens attend to everything; `full`: some layers are full.
    """
    first = GlobalKeys(first=arguments.first)
    last = GlobalQueries(last=arguments.last)
    num_full = round(arguments.full_layers * len(layers))
    places = np.linspace(0, len(layers) - 1, num_full).astype(int)
    full = {layers[place] for place in places}
    patterns = {}
    for name, of_width in KINDS.items():
        patterns[name] = at_budget(arguments, of_width)
        if name != "block routed":  # which is no part of a union
            union = at_budget(arguments, lambda w, f=of_width: f(w) | first)
            patterns[f"{name}, first"] = union
            union = union | last
            patterns[f"{name}, first, last"] = union
            patterns[f"{name}, first, last, full"] = {
                index: Full() if index in full else union for index in layers
            }
    return patterns


def at_budget(arguments, of_width):
    return closest(arguments.visible_keys, arguments.length, of_width)


def _sliding_and_dilated(width):
    return SlidingWindow(width) | SlidingWindow(width, dilation=16)


KINDS = {
    "sliding": SlidingWindow,
    "stochastic": Stochastic,
    # Half of a random window is later text and hidden.
    "small world 1:1": lambda w: SlidingWindow(w) | Stochastic(2 * w),
    "small world 3:1": lambda w: SlidingWindow(3 * w) | Stochastic(2 * w),
    "sliding and dilated": _sliding_and_dilated,
    "block routed": lambda w: BlockRouted(w, MOBA_TOP_K),
}
