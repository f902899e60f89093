"""What the reports of several examples share: spreads, tables, plots."""

import importlib.util

import numpy as np

from examples.shared.attentions import ATTENTIONS


def spread(values):
    """Standard deviation over seeds, the first axis; 0 of one seed."""
    values = np.asarray(values)
    if len(values) == 1:
        return np.zeros(values.shape[1:])
    return np.std(values, axis=0, ddof=1)


def with_spread(values, sign=""):
    """Mean and spread over seeds in words; of one seed the value."""
    mean = f"{np.mean(values):{sign}.4f}"
    return mean if len(values) == 1 else f"{mean} ± {spread(values):.4f}"


def group(runs, *attributes):
    """`{values of some attributes: the runs that have them}`, in order."""
    groups = {}
    for run in runs:
        key = tuple(getattr(run, name) for name in attributes)
        groups.setdefault(key, []).append(run)
    return groups


def in_cell(pattern):
    """A pattern in a cell of a markdown table."""
    return repr(pattern).replace("|", r"\|")


def tabulate(columns, rows):
    """A markdown table; all but the first two columns are of numbers."""
    sides = ["---", "---", *["---:"] * (len(columns) - 2)]
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(sides)}|", *lines[1:]])


def write_table(folder, text):
    """Prints a report, writes it, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "table.md"
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n")
    return path


def write_samples(folder, samples):
    """Prints texts by their titles, writes them, and returns the path."""
    text = "\n".join(f"--- {title}\n{x}" for title, x in samples.items())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "samples.txt"
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n")
    return path


def can_plot():
    return importlib.util.find_spec("matplotlib") is not None


def make_axes(num_panels=1, width=7.2):
    """A figure that needs no screen, and its panels beside each other."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, num_panels, figsize=(width, 4.6), squeeze=False
    )
    return figure, axes[0]


def draw(axes, attention, x, means, spreads, label):
    """A curve with error bars, in the style of its attention."""
    colour, marker, line = ATTENTIONS[attention].style
    axes.errorbar(
        x,
        means,
        yerr=spreads,
        label=label,
        color=colour,
        marker=marker,
        linestyle=line,
        capsize=3,
    )


def save(figure, path):
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
