"""Figures of the analysis; the only part of it that needs matplotlib.

Every function returns a `matplotlib.figure.Figure` of its own, without any
state of pyplot, so it needs no screen; `save` writes it, and a notebook shows
it. Colours are those of Okabe and Ito, which colour-blind readers tell apart;
markers, lines and shades differ as well, for print without colours.

Letters: `n` tokens, `L` layers, `H` heads, `P` terms of a layer.
"""

import itertools
import math
import pathlib
import textwrap

import matplotlib
import numpy as np
from keras import ops
from matplotlib import colors
from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keras_sa import _validation
from keras_sa.analysis.sources import as_patterns

FORMATS = ("png", "svg")
# Colour, marker and line of the first curve, the second and so on. Dashes are
# left for theory.
_STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "-."),
    ("#009E73", "^", ":"),
    ("#CC79A7", "v", (0, (5, 1, 1, 1, 1, 1))),
    ("#E69F00", "D", (0, (8, 1))),
    ("#56B4E9", "P", (0, (1, 3))),
    ("black", "*", "-"),
)
# Of the token itself, of what several parts have, and of one part after the
# other. Those that meet in a panel differ in shade.
_ITSELF, _SEVERAL = ("itself", "black"), ("several of them", "#F0E442")
_PARTS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00")
_MOST_LETTERS = 32  # in a line of a title
_MOST_DRAWN = 2048  # tokens; there are not as many dots in print
_MOST_CELLS = 200  # with numbers that are large enough to read
_MOST_CURVES = len(_STYLES)
_DOTS_PER_INCH = 160
# Measure of a profile, unit, limits of the colours, and how it is written.
_PROFILE = (
    ("entropy", "nats", (0, None), "{:.1f}"),
    ("local_mass", "fraction of the attention", (0, 1), "{:.2f}"),
    ("mean_distance", "tokens", (0, None), "{:.0f}"),
)


def plot_pattern(source, length, is_causal=None):
    """Which keys a token attends to, in the order of the text, for each layer.

    Every kind of pattern that a layer is made of has a colour of its own, and
    so has what several of them attend to.

    Args:
        source: as in `as_patterns`; or a dict from the title of a panel to a
            source of one layer, to compare them.
        length: tokens `n`, at most 2048: the masks take O(n^2).
        is_causal: as in `as_patterns`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: for a source without attention, another `length`, or
            several layers for one title.

    Example:

    >>> from keras_sa.analysis import plots
    >>> from keras_sa.patterns import SlidingWindow
    >>> from keras_sa.patterns import Stochastic
    >>> stack = [Stochastic(4), SlidingWindow(4)]
    >>> figure = plots.plot_pattern(stack, 32, is_causal=True)
    >>> [axes.get_title() for axes in figure.axes]
    ['layer 0: Stochastic(4)', 'layer 1: SlidingWindow(4)']
    """
    layers = _titled_layers(source, is_causal)
    _validation.check_positive_int("length", length)
    if length > _MOST_DRAWN:
        raise ValueError(
            f"`length` is expected to be at most {_MOST_DRAWN} tokens: more "
            f"cannot be told apart. Received: length={length}"
        )
    figure, panels = _grid(len(layers), panel=2.8, beside=2.4)
    kinds = {_kind(leaf) for _, bound in layers for leaf in bound.leaves()}
    kinds = [_ITSELF, *zip(sorted(kinds), itertools.cycle(_PARTS)), _SEVERAL]
    colours = ["white", *(colour for _, colour in kinds)]
    names = [name for name, _ in kinds]
    present = set()
    for axes, (title, bound) in zip(panels, layers):
        codes = _codes(bound, length, names)
        present.update(np.unique(codes).tolist())
        _draw_codes(axes, codes, colours)
        axes.set_title(title)
    handles = [
        Patch(facecolor=colour, edgecolor="black", label=name)
        for code, (name, colour) in enumerate(kinds, start=1)
        if code in present
    ]
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def plot_coverage(fields, expected=None, fraction=0.99):
    """How much of the text reaches a token through the layers, against depth.

    Args:
        fields: dict from the label of a curve to its `ReceptiveField`, of at
            most seven. Sampled ones have bars of two standard errors.
        expected: optional dict from some of these labels to `[L + 1]`, as
            `expected_coverage` returns: drawn as thin black dashes.
        fraction: of the text, whose depth is marked by a ring and written
            in the legend.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: for no curve or too many, a label of `expected` that
            `fields` does not have, or a `fraction` outside (0, 1].

    Example:

    >>> from keras_sa import analysis
    >>> from keras_sa.analysis import plots
    >>> from keras_sa.patterns import Stochastic
    >>> stack = [Stochastic(8)] * 4
    >>> figure = plots.plot_coverage(
    ...     {"stochastic": analysis.receptive_field(stack, 256)},
    ...     {"stochastic": analysis.expected_coverage(stack, 256)},
    ... )
    >>> figure.axes[0].get_xlabel()
    'depth in layers'
    """
    _check_curves("fields", fields)
    expected = _check_expected(expected, fields)
    if not 0 < fraction <= 1:
        raise ValueError(
            "`fraction` is expected to be above 0 and at most 1. "
            f"Received: fraction={fraction}"
        )
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color="0.85", linewidth=0.6)
    for style, (label, field) in zip(_STYLES, fields.items()):
        _draw_field(axes, style, label, field, fraction)
    theory = {"color": "black", "linestyle": "--", "linewidth": 0.9}
    for number, values in enumerate(expected.values()):
        label = "theory" if number == 0 else None
        axes.plot(100 * np.asarray(values), label=label, zorder=3, **theory)
    is_causal = any(field.is_causal for field in fields.values())
    axes.set_xlabel("depth in layers")
    axes.set_ylabel(f"coverage in % of the {'past' if is_causal else 'text'}")
    axes.set_ylim(-3, 103)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    _add_legend(figure, axes)
    return figure


def plot_gates(gates, terms=None):
    """The gates of gated sums: how open each term is in each head.

    Args:
        gates: list of `[P, H]`, one a layer, of numbers from 0 (shut) to 1
            (open), for each term of the layer's pattern.
        terms: optional list of the names of the terms. Default: their number.

    Returns:
        A `matplotlib.figure.Figure` with a heat map for each term; layers
        without it are hatched.

    Raises:
        ValueError: for no layers, other shapes, another number of names, or
            numbers outside 0 .. 1.

    Example:

    >>> from keras_sa.analysis import plots
    >>> figure = plots.plot_gates([[[0.2, 0.4], [0.9, 0.8]], [[0.5, 0.6]]])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['term 0', 'term 1']
    """
    layers = [_check_gate(gate) for gate in gates]
    if not layers:
        raise ValueError(
            "`gates` is expected to have an array for at least one layer. "
            f"Received: gates={gates!r}"
        )
    num_terms = max(len(gate) for gate in layers)
    if terms is None:
        terms = [f"term {number}" for number in range(num_terms)]
    if len(terms) != num_terms:
        raise ValueError(
            f"`terms` is expected to have {num_terms} names. "
            f"Received: terms={terms!r}"
        )
    figure, panels = _grid(num_terms, panel=3.6, beside=0.8)
    for number, (axes, name) in enumerate(zip(panels, terms)):
        rows = [
            gate[number] if number < len(gate) else [np.nan] * gate.shape[1]
            for gate in layers
        ]
        image = _draw_heat_map(axes, rows, (0, 1), "{:.2f}")
        axes.set_title(name)
    figure.colorbar(image, ax=panels, label="gate: 0 is shut, 1 is open")
    return figure


def plot_attention_profile(profiles):
    """Where the heads of a model look: a heat map of layers and heads each.

    Args:
        profiles: list of `AttentionProfile`, one a layer.

    Returns:
        A `matplotlib.figure.Figure` with panels of the entropy, the mass on
        the local window, and the mean distance.

    Raises:
        ValueError: for no layers, or measures that are not `[H]`.

    Example:

    >>> import types
    >>> from keras_sa.analysis import plots
    >>> profile = types.SimpleNamespace(
    ...     entropy=[1.5, 2.0],
    ...     local_mass=[0.9, 0.4],
    ...     mean_distance=[3.0, 50.0],
    ...     window_size=32,
    ... )
    >>> figure = plots.plot_attention_profile([profile, profile])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['entropy', 'local mass, window 32']
    """
    if not len(profiles):
        raise ValueError(
            "`profiles` is expected to have one of at least one layer. "
            f"Received: profiles={profiles!r}"
        )
    figure, panels = _grid(len(_PROFILE), panel=3.6)
    for axes, (name, unit, span, form) in zip(panels, _PROFILE):
        rows = [_heads_of(profile, name) for profile in profiles]
        image = _draw_heat_map(axes, rows, span, form)
        axes.set_title(name.replace("_", " "))
        figure.colorbar(image, ax=axes, label=unit)
    windows = sorted({profile.window_size for profile in profiles})
    panels[1].set_title(f"local mass, window {'/'.join(map(str, windows))}")
    return figure


def save(figure, path):
    """Writes a figure as PNG or SVG, and makes the folder if there is none.

    Args:
        figure: a `matplotlib.figure.Figure`.
        path: of the file; its ending says which of the two.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: for another ending.

    Example:

    >>> import tempfile
    >>> from keras_sa.analysis import plots
    >>> figure = plots.plot_gates([[[0.2, 0.4], [0.9, 0.8]]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plots.save(figure, folder + "/gates.png").name
    'gates.png'
    """
    path = pathlib.Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise ValueError(
            f"`path` is expected to end with one of {FORMATS}. "
            f"Received: path={str(path)!r}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date and random names, the same figure is the same file.
    with matplotlib.rc_context({"svg.hashsalt": "keras_sa"}):
        metadata = {"Date": None} if ending == "svg" else {}
        figure.savefig(
            path, dpi=_DOTS_PER_INCH, bbox_inches="tight", metadata=metadata
        )
    return path


def _add_legend(figure, axes):
    """Below the axes, where it hides no curve; theory comes last."""
    handles, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(handles, labels), key=lambda pair: pair[1] == "theory")
    figure.legend(
        [handle for handle, _ in pairs],
        [label for _, label in pairs],
        loc="outside lower center",
        ncols=2 if len(pairs) > 2 else 1,
    )


def _grid(num, panel, beside=0.0):
    """A figure of square panels, at most four in a row; sizes in inches."""
    rows = math.ceil(num / 4)
    columns = math.ceil(num / rows)
    size = (columns * panel + beside, rows * panel + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = [figure.add_subplot(rows, columns, i + 1) for i in range(num)]
    return figure, panels


def _titled_layers(source, is_causal):
    """Pairs of a title and a pattern."""
    if not isinstance(source, dict):
        stack = as_patterns(source, is_causal)
        names = [repr(x.pattern) for x in stack]
        if len(stack) > 1:
            names = [f"layer {i}: {name}" for i, name in enumerate(names)]
        titles = [textwrap.fill(name, _MOST_LETTERS) for name in names]
        return list(zip(titles, stack))
    layers = []
    for title, part in source.items():
        stack = as_patterns(part, is_causal)
        if len(stack) != 1:
            raise ValueError(
                "A panel is expected to have a source of one layer. "
                f"Received: {len(stack)} layers for {title!r}"
            )
        layers.append((title, stack[0]))
    if not layers:
        raise ValueError("`source` is expected to have panels. Received: {}")
    return layers


def _codes(bound, length, names):
    """uint8 `[n, n]`: what has row i attend to column j, as its place among
    the names from 1; 0 for nothing."""
    codes = np.zeros((length, length), "uint8")
    for leaf in bound.leaves():
        mask = ops.convert_to_numpy(leaf.mask(length))
        code = 1 + names.index(_kind(leaf))
        is_taken = (codes > 0) & (codes != code)
        codes[mask] = np.where(is_taken, len(names), code)[mask]
    codes[np.diag(np.diag(codes) > 0)] = 1
    return codes


def _kind(leaf):
    return type(leaf.pattern).__name__


def _draw_codes(axes, codes, colours):
    colormap = colors.ListedColormap(colours)
    norm = colors.BoundaryNorm(np.arange(len(colours) + 1) - 0.5, colormap.N)
    axes.imshow(codes, colormap, norm, interpolation="nearest")
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(5, integer=True))


def _draw_field(axes, style, label, field, fraction):
    colour, marker, line = style
    depth = field.coverage_depth(fraction)
    reached = "not reached" if depth is None else f"at depth {depth}"
    coverage = 100 * np.asarray(field.coverage)
    axes.errorbar(
        np.arange(len(coverage)),
        coverage,
        yerr=None if field.is_exact else 200 * np.asarray(field.standard_error),
        label=f"{label} ({100 * fraction:g} % {reached})",
        color=colour,
        marker=marker,
        linestyle=line,
        capsize=3,
    )
    if depth is not None:
        ring = {"facecolor": "none", "edgecolor": colour, "s": 150}
        axes.scatter([depth], [coverage[depth]], **ring, zorder=4)


def _draw_heat_map(axes, rows, span, form):
    """Layers downwards, heads across, from 0; rows may differ in length."""
    width = max(len(row) for row in rows)
    values = np.full((len(rows), width), np.nan)
    for index, row in enumerate(rows):
        values[index, : len(row)] = row
    low, high = span
    image = axes.imshow(
        values,
        "cividis",
        vmin=low,
        vmax=high,
        aspect="auto",
    )
    # Seen where there is no such head or path.
    axes.patch.set(hatch="xx", facecolor="white", edgecolor="0.6")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(8, integer=True))
    if values.size <= _MOST_CELLS:
        _write_numbers(axes, image, values, form)
    return image


def _write_numbers(axes, image, values, form):
    size = max(4.5, min(9, 60 / values.shape[1]))
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            is_dark = image.norm(value) < 0.5
            axes.text(
                column,
                row,
                form.format(value),
                ha="center",
                va="center",
                fontsize=size,
                color="white" if is_dark else "black",
            )


def _check_curves(name, curves):
    if not isinstance(curves, dict) or not 1 <= len(curves) <= _MOST_CURVES:
        raise ValueError(
            f"`{name}` is expected to be a dict from labels to at least one "
            f"and at most {_MOST_CURVES} curves. Received: {name}={curves!r}"
        )


def _check_expected(expected, fields):
    expected = expected or {}
    unknown = sorted(set(expected) - set(fields))
    if unknown:
        raise ValueError(
            "The labels of `expected` are expected to be among those of "
            f"`fields`: {sorted(fields)}. Received: {unknown}"
        )
    return expected


def _check_gate(gate):
    """Returns the gates of a layer as float64 `[P, H]`."""
    values = np.asarray(gate, float)
    if values.ndim != 2 or not values.size:
        raise ValueError(
            "The gates of a layer are expected to be `[terms, heads]`. "
            f"Received: shape {values.shape}"
        )
    if not ((values >= 0) & (values <= 1)).all():  # nan as well
        raise ValueError(
            "Gates are expected to be between 0 and 1. "
            f"Received: from {values.min()} to {values.max()}"
        )
    return values


def _heads_of(profile, name):
    """A measure of the heads of a layer as float64 `[H]`."""
    values = np.asarray(getattr(profile, name), float)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"`{name}` of a profile is expected to be `[heads]`. "
            f"Received: shape {values.shape}"
        )
    return values
