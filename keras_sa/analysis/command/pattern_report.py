"""What the command line tells of patterns: a row for each.

Letters: `n` tokens.
"""

import textwrap

import numpy as np

from keras_sa.analysis import plots
from keras_sa.analysis.command.report import Report
from keras_sa.analysis.command.report import number
from keras_sa.analysis.command.report import with_error
from keras_sa.analysis.command.small_world_cells import small_world_cells
from keras_sa.analysis.command.small_world_cells import small_world_note
from keras_sa.analysis.command.stacks import make_stack
from keras_sa.analysis.expected_coverage import expected_coverage
from keras_sa.analysis.graphs import most_edges
from keras_sa.analysis.graphs import neighbor_rows
from keras_sa.analysis.mixing import spectral_gap
from keras_sa.analysis.mixing import total_variation
from keras_sa.analysis.receptive_field import receptive_field
from keras_sa.analysis.small_world import small_world_measures

# What is not measured on graphs: full attention over more tokens, where it is
# known to be 1, and what would take more than a few GB.
_MOST_FULL, _MOST_EDGES = 1024, 2**26
# Layers up to which the coverage at each has a column.
_MOST_DEPTHS = 8
_FRACTIONS = (0.99, 1.0)
_ALIKE = 1.1  # keys per token that are comparable, the most by the least
_FEWEST_DRAWN, _MOST_DRAWN = 64, 512  # tokens


def pattern_report(arguments, progress):
    """Measures the patterns that the command line names.

    Args:
        arguments: of the command line.
        progress: a `Progress`.

    Returns:
        A `Report`.
    """
    report = Report(_title(arguments))
    stacks = {
        repr(pattern): make_stack(pattern, arguments, arguments.length)
        for pattern in arguments.pattern
    }
    _add_keys(report, stacks, arguments)
    report.figures["pattern"] = _draw_patterns(arguments)
    for measure, add in _MEASURES.items():
        if measure in arguments.measures:
            add(report, stacks, arguments, progress)
    return report


def _title(arguments):
    words = [f"n = {arguments.length:,} tokens"]
    words.append(f"{arguments.layers} layers")
    words += [f"{arguments.heads} heads"] if arguments.heads else []
    words += ["the same seed in all"] if arguments.same_seed else []
    words.append("causal" if arguments.is_causal else "bidirectional")
    return f"Attention graph: {', '.join(words)}, seed {arguments.seed}"


def _add_keys(report, stacks, arguments):
    keys = {
        name: _keys_per_token(stack[0], arguments.length)
        for name, stack in stacks.items()
    }
    for name, value in keys.items():
        report.rows.append({"pattern": name, "keys per token": number(value)})
    if any("routes" in stack[0].pattern.needs() for stack in stacks.values()):
        report.notes.append(
            "BlockRouted: the blocks are a random choice here; a model "
            "chooses them by their keys."
        )
    sparse = [
        keys[name]
        for name, stack in stacks.items()
        if not _is_full(stack[0], arguments.length)
    ]
    if len(sparse) > 1 and max(sparse) > _ALIKE * min(sparse):
        report.notes.append(
            "The patterns do not attend to equally many keys. Windows that do "
            "would be a fairer comparison."
        )


def _keys_per_token(bound, length):
    """The mean number of keys of all heads and paths together, as drawn."""
    most = np.full(length, length)
    if bound.is_causal:
        most = np.arange(1, length + 1)
    return (
        sum(
            most[rows].sum() if row is None else np.count_nonzero(row >= 0)
            for rows, row in neighbor_rows([bound], length)
        )
        / length
    )


def _is_full(bound, length):
    dense, _ = bound.split(length)
    return dense.all()


def _draw_patterns(arguments):
    """The first layers, over a text that is short enough to tell something."""
    widest = max(
        (
            value
            for pattern in arguments.pattern
            for leaf in pattern.leaves()
            for value in leaf.get_config().values()
            if isinstance(value, int)
        ),
        default=0,
    )
    length = max(_FEWEST_DRAWN, min(6 * widest, _MOST_DRAWN))
    length = min(length, arguments.length)
    layers = {
        textwrap.fill(repr(x), 32): make_stack(x, arguments, length)[0]
        for x in arguments.pattern
    }
    figure = plots.plot_pattern(layers, length)
    if length < arguments.length:
        figure.suptitle(f"the same over a text of {length} tokens")
    return figure


def _add_receptive_field(report, stacks, arguments, progress):
    fields, expected = {}, {}
    for row, (name, stack) in zip(report.rows, stacks.items()):
        fields[name] = receptive_field(
            stack,
            arguments.length,
            num_sources=arguments.samples,
            seed=arguments.seed,
            progress=progress.stage(f"{name}, coverage"),
        )
        row.update(_coverage_cells(fields[name]))
        progress.stage(f"{name}, expected coverage")
        try:
            expected[name] = expected_coverage(stack, arguments.length)
        except ValueError:
            pass  # no theory of it
    report.figures["coverage"] = plots.plot_coverage(fields, expected)
    report.notes.append(_coverage_note(fields, arguments))


def _coverage_cells(field):
    num_layers = len(field.coverage) - 1
    depths = range(1, num_layers + 1)
    if num_layers > _MOST_DEPTHS:
        powers = (2**k for k in range(num_layers.bit_length()))
        depths = sorted({*powers, num_layers})
    cells = {
        f"depth {depth}": _fraction(
            field.coverage[depth], field.standard_error[depth]
        )
        for depth in depths
    }
    for fraction in _FRACTIONS:
        depth = field.coverage_depth(fraction)
        cells[f"{100 * fraction:g} % at depth"] = (
            f"> {num_layers}" if depth is None else str(depth)
        )
    return cells


def _fraction(value, error):
    """In %; what is not yet everything is not written as if it were."""
    cell = with_error(100 * value, 100 * error)
    return "< 100" if cell == "100" and value < 1 else cell


def _coverage_note(fields, arguments):
    whole = "the tokens up to it" if arguments.is_causal else "all tokens"
    note = (
        f"depth l: coverage after l layers, the fraction in % of {whole} that "
        "reaches a token, mean over tokens; then the first layers of 99 % and "
        "of 100 %."
    )
    field = next(iter(fields.values()))
    if not field.is_exact:
        note += (
            f" From a random sample of {field.num_sources:,} tokens that are "
            "followed, ± standard error where it can be seen in the digits; "
            "100 % is of these."
        )
    return note


def _add_small_world(report, stacks, arguments, progress):
    found = []
    for row, (name, stack) in zip(report.rows, stacks.items()):
        layers = stack[: arguments.graph_layers]
        if _has_no_graph(report, name, layers, arguments, "small_world"):
            continue
        measures = small_world_measures(
            layers,
            arguments.length,
            num_sources=arguments.samples,
            seed=arguments.seed,
            progress=progress.stage(f"{name}, small world"),
        )
        row.update(small_world_cells(measures))
        found.append(measures)
    if found:
        report.notes += [_graph_note(arguments), small_world_note(found)]


def _graph_note(arguments):
    num = arguments.graph_layers
    which = "one layer" if num == 1 else f"{num} layers together"
    note = f"degree to omega: of the undirected graph of {which}."
    if num == 1 and any(_is_one_order(x) for x in arguments.pattern):
        note += (
            " A window over one permutation alone is a lattice as well; take "
            "--graph-layers 2 to see how permutations combine."
        )
    return note


def _is_one_order(pattern):
    return pattern.num_random == len(pattern.leaves()) == 1


def _has_no_graph(report, name, stack, arguments, measure):
    """Whether there is none, or too large a one; the report then says so."""
    length = arguments.length
    num_edges = most_edges(stack, length)
    is_full = length > _MOST_FULL and any(_is_full(x, length) for x in stack)
    if is_full or num_edges > _MOST_EDGES:
        why = f"there would be up to {num_edges:,} edges"
    elif all(_keys_per_token(pattern, length) <= 1 for pattern in stack):
        why = "no token attends to another"
    else:
        return False
    report.notes.append(f"{name}: no {measure}, for {why}.")
    return True


def _add_mixing(report, stacks, arguments, progress):
    for row, (name, stack) in zip(report.rows, stacks.items()):
        if _has_no_graph(report, name, stack, arguments, "mixing"):
            continue
        progress.stage(f"{name}, total variation")
        variation = total_variation(
            stack, arguments.length, seed=arguments.seed
        )
        progress.stage(f"{name}, spectral gap")
        gap = spectral_gap(stack, arguments.length)
        row["total variation"] = with_error(
            variation.mean[-1], variation.standard_error[-1]
        )
        row["gap of a layer"] = number(gap.gaps[0])
        row["gap of the stack"] = number(gap.product_gap)
    report.notes.append(
        "total variation: how far a token's view, under uniform attention in "
        "all layers, is from an even one, 0 to 1; gap: the spectral gap of "
        "uniform attention, of the first layer and of the stack."
    )


_MEASURES = {
    "receptive_field": _add_receptive_field,
    "small_world": _add_small_world,
    "mixing": _add_mixing,
}
