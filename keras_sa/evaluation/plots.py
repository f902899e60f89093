"""Figures of measurements under several patterns; the only part of evaluation
that needs matplotlib.

Every function returns a `matplotlib.figure.Figure` that needs no screen.
"""

import math

from matplotlib.figure import Figure

_MARKERS = "os^Dv<>P*X"


def plot_comparison(comparison):
    """The rise of the loss against the visible keys.

    Args:
        comparison: `keras_sa.evaluation.PatternComparison`.
    """
    parts = {
        "all": "all tokens",
        "last": f"last {comparison.settings['last_tokens']} tokens",
    }
    figure = Figure(figsize=(11, 5.2))
    panels = figure.subplots(1, len(parts))
    for axes, (part, title) in zip(panels, parts.items()):
        axes.axhline(0, color="black", linestyle="--", linewidth=1)
        for index, result in enumerate(comparison.results):
            x = comparison.increase(result.name, part)
            axes.errorbar(
                result.visible_keys,
                x.mean,
                # Of one document there is no interval to draw.
                yerr=None if math.isnan(x.low) else x.high - x.mean,
                marker=_MARKERS[index % len(_MARKERS)],
                color=f"C{index // len(_MARKERS)}",
                linestyle="",
                capsize=3,
                label=result.name,
            )
        axes.set_title(title)
        axes.set_xlabel("visible keys per token (mean)")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss above full attention (nats per token)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="outside right upper")
    figure.set_layout_engine("constrained")
    return figure


def plot_choice(chosen):
    """How much each layer suffers from each candidate.

    Args:
        chosen: `keras_sa.evaluation.ChosenPatterns`.
    """
    figure = Figure(figsize=(9, 4.6))
    axes = figure.subplots()
    layers = list(chosen.alone)
    for index, candidate in enumerate(chosen.candidates):
        rises = [chosen.alone[layer][index] for layer in layers]
        axes.plot(layers, rises, marker="o", label=f"{candidate!r} alone")
    kept = [chosen.kept[layer] for layer in layers]
    axes.plot(layers, kept, "k*--", label="full, where all others are sparse")
    for layer in layers:
        if layer not in chosen.patterns:
            axes.axvspan(layer - 0.4, layer + 0.4, color="0.9", zorder=0)
    axes.set_xlabel("layer (grey: chosen to stay full)")
    axes.set_ylabel("difference of the loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.set_layout_engine("constrained")
    return figure
