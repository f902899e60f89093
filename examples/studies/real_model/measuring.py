"""Compares patterns in a model, or chooses one for each layer."""

import shlex
import sys

import numpy as np

from examples.shared import byte_text
from examples.shared import language_model
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from examples.shared.reports import can_plot
from examples.studies.real_model.asking import ask
from examples.studies.real_model.asking import side_by_side
from examples.studies.real_model.patterns import layers_of
from examples.studies.real_model.patterns import patterns_at
from keras_sa import evaluation


def main(arguments):
    announce(1, 3, "the model")
    model = language_model.load(arguments)
    announce(2, 3, "measurements")
    print(f"  to go on after a stop: {shlex.join(['python', *sys.argv])}")
    if arguments.ask:
        results = {task: ask(arguments, model, task) for task in arguments.ask}
        tables = {**results, "answers": side_by_side(results)}
    else:
        if arguments.choose:
            results = {"chosen": choose(arguments, model)}
        else:
            results = {"comparison": compare(arguments, model)}
        tables = results
    announce(3, 3, "the report")
    folder = arguments.output
    paths = []
    for name, table in tables.items():
        print(f"\n{name}\n\n{table}\n")
        paths.append(folder / f"{name}.md")
        paths[-1].write_text(f"{table}\n", encoding="utf-8")
    for name, result in results.items():
        paths.append(folder / f"{name}.json")
        result.save(paths[-1])
        if can_plot() and hasattr(result, "plot"):
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


def compare(arguments, model):
    layers = layers_of(arguments, model.causal_lm)
    return evaluation.compare_patterns(
        model.causal_lm,
        patterns_at(arguments, layers, arguments.length),
        read_documents(arguments, model),
        arguments.length,
        layers=arguments.layers,
        seed=arguments.seed,
        last_tokens=arguments.last,
        rounds=arguments.rounds,
        path=arguments.output / "measured.json",
    )


def choose(arguments, model):
    return evaluation.choose_patterns(
        model.causal_lm,
        read_documents(arguments, model),
        arguments.length,
        max_loss_increase=arguments.choose,
        layers=arguments.layers,
        seed=arguments.seed,
        last_tokens=arguments.last,
        path=arguments.output / "trials.json",
    )
