"""What the command line tells of patterns: a row for each.

Letters: `n` tokens.
"""

import numpy as np

from keras_sa.analysis import plots
from keras_sa.analysis.command.report import Report
from keras_sa.analysis.command.report import number
from keras_sa.analysis.command.report import with_error
from keras_sa.analysis.command.small_world_cells import small_world_cells
from keras_sa.analysis.command.small_world_cells import small_world_note
from keras_sa.analysis.command.stacks import curve_degree
from keras_sa.analysis.command.stacks import make_stack
from keras_sa.analysis.expected_coverage import expected_coverage
from keras_sa.analysis.graphs import neighbor_rows
from keras_sa.analysis.mixing import spectral_gap
from keras_sa.analysis.mixing import total_variation
from keras_sa.analysis.receptive_field import receptive_field
from keras_sa.analysis.small_world import small_world_curve
from keras_sa.analysis.small_world import small_world_measures
from keras_sa.analysis.small_world import watts_strogatz_curve
from keras_sa.ops import patterns

# What is not measured on graphs: full attention over more tokens, where it is
# known to be 1, and what would take more than a few GB.
_MOST_FULL, _MOST_EDGES = 1024, 2**26
_MOST_REWIRED = 2**14  # nodes; networkx takes a minute for more
# Layers up to which the coverage at each has a column.
_MOST_DEPTHS = 8
_SHARES = (0.99, 1.0)
_ALIKE = 1.1  # visible keys of patterns that are comparable, the most by least
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
        name: make_stack(name, arguments, arguments.length)
        for name in arguments.pattern
    }
    _add_visible_keys(report, stacks, arguments)
    report.figures["pattern"] = _draw_patterns(arguments)
    for measure, add in _MEASURES.items():
        if measure in arguments.measures:
            add(report, stacks, arguments, progress)
    return report


def _title(arguments):
    words = [f"n = {arguments.length:,} tokens"]
    words += [f"window {arguments.window}"] if arguments.window else []
    if arguments.local_window:
        words.append(f"{arguments.local_window} over the text in small_world")
    if arguments.block_size:
        words.append(
            f"{arguments.top_k} blocks of {arguments.block_size} tokens"
        )
    words.append(f"{arguments.layers} layers")
    words += [f"{arguments.heads} heads"] if arguments.heads else []
    words += ["in random blocks"] if arguments.neighborhood == "block" else []
    words += ["the same order in all"] if arguments.same_order else []
    words.append("causal" if arguments.causal else "looking both ways")
    return f"Attention graph: {', '.join(words)}, seed {arguments.seed}"


def _add_visible_keys(report, stacks, arguments):
    keys = {
        name: _visible_keys(stack[0], arguments.length)
        for name, stack in stacks.items()
    }
    for name, value in keys.items():
        row = {"pattern": name, "visible keys per token": number(value)}
        report.rows.append(row)
    if "block_routed" in stacks:
        report.notes.append(
            "block_routed: the blocks are a random choice here; a model "
            "chooses them by their keys."
        )
    sparse = [value for name, value in keys.items() if name != "full"]
    if len(sparse) > 1 and max(sparse) > _ALIKE * min(sparse):
        report.notes.append(
            "The patterns do not see equally many keys. Windows that do would "
            "be a fairer comparison: take a --window for each."
        )


def _visible_keys(pattern, length):
    """The mean number of tokens that a token sees, itself included."""
    if isinstance(pattern, patterns.Full):
        return patterns.visible_keys_per_token(
            length, length, "full", causal=pattern.causal
        )
    rows = neighbor_rows([pattern], length)
    return sum(np.count_nonzero(row >= 0) for row in rows) / length


def _draw_patterns(arguments):
    """The first layers, over a text that is short enough to see something."""
    widths = (arguments.window, arguments.local_window, arguments.block_size)
    length = 6 * max(width or 0 for width in widths)
    length = max(_FEWEST_DRAWN, min(length, _MOST_DRAWN))
    length = min(length, arguments.length)
    layers = {
        name: make_stack(name, arguments, length)[0]
        for name in arguments.pattern
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
        if _has_theory(name, arguments):
            progress.stage(f"{name}, expected coverage")
            expected[name] = expected_coverage(stack, arguments.length)
    report.figures["coverage"] = plots.plot_coverage(fields, expected)
    report.notes.append(_coverage_note(fields, arguments))


def _has_theory(name, arguments):
    """Theory has no blocks that are chosen, and an order for each layer."""
    if name == "block_routed":
        return False
    return not arguments.same_order or name in ("full", "sliding_window")


def _coverage_cells(field):
    num_layers = len(field.coverage) - 1
    depths = range(1, num_layers + 1)
    if num_layers > _MOST_DEPTHS:
        powers = (2**k for k in range(num_layers.bit_length()))
        depths = sorted({*powers, num_layers})
    cells = {
        f"depth {depth}": _share(
            field.coverage[depth], field.standard_error[depth]
        )
        for depth in depths
    }
    for share in _SHARES:
        depth = field.coverage_depth(share)
        cells[f"{100 * share:g} % at depth"] = (
            f"> {num_layers}" if depth is None else str(depth)
        )
    return cells


def _share(value, error):
    """In %; what is not yet everything is not written as if it were."""
    cell = with_error(100 * value, 100 * error)
    return "< 100" if cell == "100" and value < 1 else cell


def _coverage_note(fields, arguments):
    whole = "the tokens up to it" if arguments.causal else "all tokens"
    note = (
        f"depth l: coverage after l layers, the share in % of {whole} that "
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
    if num == 1 and "stochastic" in arguments.pattern:
        note += (
            " A window over one random order is a lattice as well; take "
            "--graph-layers 2 to see how orders combine."
        )
    return note


def _has_no_graph(report, name, stack, arguments, measure):
    """Whether there is none, or too large a one; the report then says so."""
    length = arguments.length
    width = sum(pattern.most_neighbors(length) for pattern in stack)
    num_edges = min(width, length) * length
    is_full = name == "full" and length > _MOST_FULL
    if is_full or num_edges > _MOST_EDGES:
        why = f"there would be up to {num_edges:,} edges"
    elif all(_visible_keys(pattern, length) == 1 for pattern in stack):
        why = "no token sees another"
    else:
        return False
    report.notes.append(f"{name}: no {measure}, for {why}.")
    return True


def _add_small_world_curve(report, stacks, arguments, progress):
    curve = small_world_curve(
        arguments.length,
        curve_degree(arguments.window),
        num_sources=arguments.samples,
        seed=arguments.seed,
        progress=progress.stage("small-world curve"),
    )
    rewired = None
    if arguments.length <= _MOST_REWIRED:
        progress.stage("rewired rings")
        rewired = watts_strogatz_curve(
            curve.length,
            curve.degree,
            curve.shares,
            num_sources=arguments.samples,
            seed=arguments.seed,
        )
    figure = plots.plot_small_world_curve(curve, rewired)
    report.figures["small_world_curve"] = figure


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
    "small_world_curve": _add_small_world_curve,
    "mixing": _add_mixing,
}
