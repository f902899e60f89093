"""The figure of a small-world curve."""

from matplotlib.figure import Figure

_STYLES = {  # colour, marker and line
    "path_length": ("#0072B2", "o", "-"),
    "clustering": ("#D55E00", "s", "-."),
}


def plot(curve, rewired=None):
    """Path length and clustering against the fraction of shortcuts.

    Both are divided by their value at the left end, that of the window alone,
    as Watts and Strogatz draw them: a small world is where paths are short
    already and the clustering is still there.

    Args:
        curve: a `SmallWorldCurve`.
        rewired: optional `SmallWorldCurve` to compare with, that of
            `watts_strogatz_curve`: drawn as dashed lines.

    Returns:
        A `matplotlib.figure.Figure`.

    Reference:
        Watts and Strogatz, Collective dynamics of "small-world" networks,
        Nature 393, 1998
    """
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color="0.85", linewidth=0.6)
    _draw_curve(axes, curve, "{}")
    if rewired is not None:
        _draw_curve(axes, rewired, "{}, rewired at random", is_reference=True)
    axes.set_title(f"{curve.length:,} tokens, {curve.degree} neighbors")
    axes.set_xlabel("fraction of shortcuts")
    axes.set_ylabel("relative to no shortcuts")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _draw_curve(axes, curve, label, is_reference=False):
    for name, (colour, marker, line) in _STYLES.items():
        values = getattr(curve, name)
        axes.plot(
            curve.fractions,
            values / values[0],
            color=colour,
            marker=marker,
            linestyle="--" if is_reference else line,
            markerfacecolor="white" if is_reference else colour,
            linewidth=1 if is_reference else None,
            label=label.format(name.replace("_", " ")),
        )
