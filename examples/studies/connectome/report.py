"""What the study tells of a connectome, and of attentions like it."""

import sys

from examples.shared import command_line
from examples.studies.connectome.edge_list import load_edge_list
from examples.studies.connectome.fly import FLY
from examples.studies.connectome.stacks import stacks_of_degree
from keras_sa.analysis import plots
from keras_sa.analysis import small_world_measures
from keras_sa.analysis.command.progress import Progress
from keras_sa.analysis.command.report import Report
from keras_sa.analysis.command.report import number
from keras_sa.analysis.command.small_world_cells import small_world_cells
from keras_sa.analysis.command.small_world_cells import small_world_note

_DRAWN = 128  # tokens of the figure


def main(arguments):
    progress = Progress()
    make = edge_list_report if arguments.edge_list else fly_report
    report = make(arguments, progress)
    progress.close()
    print(report.markdown())
    command_line.announce_end(report.write(arguments.output, "png"))


def fly_report(arguments, progress):
    """Attentions of as many tokens as the fly has neurons, as sparse as it.

    Args:
        arguments: of the command line.
        progress: a `Progress`.

    Returns:
        A `Report`.
    """
    length = arguments.length or FLY.num_neurons
    degree = even_degree(FLY.degree)
    report = Report(
        f"Attention as sparse as the brain of a fly: n = {length:,} tokens, "
        f"{degree} neighbors, seed {arguments.seed}"
    )
    found = _compare(report, length, degree, arguments, progress)
    report.rows.append(
        {
            "graph": "fly, published",
            "nodes": number(FLY.num_neurons, digits=3),
            "density": _percent(FLY.density),
            "degree": number(FLY.degree),
            "path length": number(FLY.path_length),
            "sigma": number(FLY.small_worldness),
        }
    )
    report.notes += [
        "stochastic: two layers together.",
        small_world_note(found),
    ]
    if length != FLY.num_neurons:
        report.notes.append(
            "The fly has more neurons than there are tokens here: density, "
            "path length and sigma depend on the number."
        )
    return report


def edge_list_report(arguments, progress):
    """A measured graph, and attentions of its size and degree.

    Args:
        arguments: of the command line.
        progress: a `Progress`.

    Returns:
        A `Report`.

    Raises:
        SystemExit: for a file without a graph.
    """
    progress.stage("reading edges")
    name, graph = arguments.edge_list.name, _load(arguments, progress)
    report = Report(
        f"Graph of {name}: {graph.nnz:,} edges with their directions"
    )
    measures = _measure(name, graph, None, arguments, progress)
    report.rows.append(_row(name, measures))
    length, degree = measures.length, even_degree(measures.degree)
    found = [measures]
    if degree < length:
        found += _compare(report, length, degree, arguments, progress)
        report.notes.append(
            f"Beside it attentions of as many tokens and {degree} neighbors, "
            f"seed {arguments.seed}; stochastic: two layers together."
        )
    report.notes.append(small_world_note(found))
    return report


def _load(arguments, progress):
    try:
        graph, _ = load_edge_list(
            arguments.edge_list,
            source=arguments.source_column,
            target=arguments.target_column,
            weight=arguments.weight_column,
            min_weight=arguments.min_weight,
        )
    except (OSError, ValueError) as error:
        progress.close()
        sys.exit(f"error: {error}")
    if graph.nnz == graph.diagonal().sum():
        progress.close()
        sys.exit(f"error: {arguments.edge_list} has no edges between nodes")
    return graph


def even_degree(degree):
    """The nearest degree that `stacks_of_degree` takes."""
    return max(4, 2 * round(degree / 2))


def _compare(report, length, degree, arguments, progress):
    """Adds the rows and the figure of attentions; returns their measures."""
    stacks = stacks_of_degree(degree, arguments.seed)
    found = []
    for name, stack in stacks.items():
        measures = _measure(name, stack, length, arguments, progress)
        report.rows.append(_row(name, measures))
        found.append(measures)
    layers = {
        name if len(stack) == 1 else f"{name}, layer {number}": layer
        for name, stack in stacks.items()
        for number, layer in enumerate(stack)
    }
    figure = plots.plot_pattern(layers, min(length, _DRAWN))
    if length > _DRAWN:
        figure.suptitle(f"the same over a text of {_DRAWN} tokens")
    report.figures["pattern"] = figure
    return found


def _measure(name, source, length, arguments, progress):
    return small_world_measures(
        source,
        length,
        num_sources=arguments.samples,
        seed=arguments.seed,
        progress=progress.stage(f"{name}, small world"),
    )


def _row(name, measures):
    return {
        "graph": name,
        "nodes": number(measures.length),
        "density": _percent(measures.density),
        **small_world_cells(measures),
    }


def _percent(fraction):
    return f"{number(100 * fraction, digits=3)} %"
