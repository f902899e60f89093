"""What the sweep gave: the tables, the conclusions and the plot.

Losses are in nats per token; a spread is a standard deviation over seeds.
"""

import csv
import dataclasses

import numpy as np

from examples.shared import reports

MEASURES = {
    "loss": "whole context",
    "last_quarter_loss": "last quarter of the context",
}
SMALLEST_DIFFERENCE = 0.002  # nats per token; less is called equal
SLIDING_WINDOW = "sliding_window"
RELATIONS = ("lower than", "equal to", "higher than")
COLUMNS_OF_RUNS = (
    *("attention", "budget", "seed", "visible_keys"),
    *("loss", "last_quarter_loss", "num_tokens", "seconds"),
)


@dataclasses.dataclass
class Point:
    """An attention at a number of visible keys: its runs over the seeds."""

    attention: str
    budget: int | None
    runs: list

    @property
    def pattern(self):
        return self.runs[0].pattern

    @property
    def visible_keys(self):
        return self.runs[0].visible_keys

    def mean(self, measure):
        return float(np.mean(self._values(measure)))

    def spread(self, measure):
        return float(reports.spread(self._values(measure)))

    def _values(self, measure):
        return [run.measured[measure] for run in self.runs]

    def with_spread(self, measure):
        return reports.with_spread(self._values(measure))


def write(arguments, runs):
    """Prints the report, writes it, all values and a plot; returns the paths.

    Args:
        arguments: of the command line.
        runs: list of `Run`; the first is of full attention.
    """
    full, *points = points_of(runs)
    report = "\n\n".join(
        [
            head(arguments, full),
            tabulate(full, points),
            conclude(full, points),
        ]
    )
    paths = [
        reports.write_table(arguments.output, report),
        write_runs(arguments.output / "runs.csv", runs),
    ]
    if reports.can_plot():
        paths.append(arguments.output / "loss_against_visible_keys.png")
        plot(full, points, paths[-1])
    return paths


def summarize(run):
    seed = "" if run.seed is None else f"seed {run.seed}: "
    return (
        f"{seed}loss {run.measured['loss']:.4f}, in the last quarter "
        f"{run.measured['last_quarter_loss']:.4f}  ({run.seconds:.0f} s)"
    )


def points_of(runs):
    groups = reports.group(runs, "attention", "budget")
    return [Point(*key, own) for key, own in groups.items()]


def write_runs(path, runs):
    """Every value behind the means."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS_OF_RUNS)
        for run in runs:
            values = {**vars(run), **run.measured}
            writer.writerow([values[name] for name in COLUMNS_OF_RUNS])
    return path


# --- the table


def head(arguments, full):
    num_tokens = full.runs[0].measured["num_tokens"]
    return (
        "Trained with full attention, nothing trained after the swap. Loss in "
        f"nats per token over {num_tokens:,} held-out tokens, in "
        f"sequences of {arguments.length} that share none; the last quarter "
        f"has at least {3 * arguments.length // 4} tokens before it. ± is the "
        "standard deviation over permutations of the seeds "
        f"{arguments.seeds}."
    )


def tabulate(full, points):
    columns = ["attention", "pattern", "visible keys per token"]
    for what in ("loss", "last quarter"):
        columns += [what, "above full"]
    return reports.tabulate(
        columns, [row_of(point, full) for point in [full, *points]]
    )


def row_of(point, full):
    row = [
        point.attention,
        reports.in_cell(point.pattern),
        f"{point.visible_keys:.1f}",
    ]
    for measure in MEASURES:
        excess = f"{point.mean(measure) - full.mean(measure):+.4f}"
        row += [point.with_spread(measure), "" if point is full else excess]
    return row


# --- the conclusions


def conclude(full, points):
    """What the numbers say, whoever wins."""
    windows = {p.budget: p for p in points if p.attention == SLIDING_WINDOW}
    if not windows:
        return "Without `sliding_window` there is nothing to compare with."
    others = reports.group(
        [p for p in points if p.attention != SLIDING_WINDOW], "attention"
    )
    lines = [
        "At equal visible keys, against the sliding window; equal means a "
        "difference of at most a standard deviation over seeds, or "
        f"{SMALLEST_DIFFERENCE} nats if that is more:",
        "",
    ]
    for (name,), own in others.items():
        lines += [
            f"- {name}, {where}: the loss is {compare(own, windows, measure)}."
            for measure, where in MEASURES.items()
        ]
        if name == "stochastic":
            lines.append(judge_claim(own, windows))
    return "\n".join([*lines, tell_best(points), tell_gain(full, windows)])


def relation(point, window, measure):
    """One of `RELATIONS`, between two losses."""
    difference = point.mean(measure) - window.mean(measure)
    noise = max(point.spread(measure), SMALLEST_DIFFERENCE)
    if abs(difference) <= noise:
        return RELATIONS[1]
    return RELATIONS[0 if difference < 0 else 2]


def compare(points, windows, measure):
    """Each relation to the sliding window with its budgets."""
    groups = {}
    for point in points:
        window = windows[point.budget]
        groups.setdefault(relation(point, window, measure), []).append(
            f"{point.budget} ({tell_difference(point, window, measure)})"
        )
    return "; ".join(
        f"{key} that of the sliding window at {', '.join(groups[key])}"
        for key in RELATIONS
        if key in groups
    )


def tell_difference(point, window, measure):
    difference = point.mean(measure) - window.mean(measure)
    told = f"{difference:+.4f}"
    if len(point.runs) == 1:
        return told
    return f"{told} ± {point.spread(measure):.4f}"


def judge_claim(points, windows):
    """Is stochastic attention the better one where windows are small?"""
    told = []
    for measure, where in MEASURES.items():
        better = [
            str(point.budget)
            for point in points
            if relation(point, windows[point.budget], measure) == RELATIONS[0]
        ]
        told.append(f"at {', '.join(better) or 'none'} in the {where}")
    budgets = ", ".join(str(point.budget) for point in points)
    return (
        "- That stochastic attention without training is better than the "
        "sliding window at small windows (arXiv 2604.00754) holds, of "
        f"{budgets} visible keys, {', and '.join(told)}."
    )


def tell_best(points):
    told = []
    for (budget,), own in reports.group(points, "budget").items():
        best = min(own, key=lambda point: point.mean("loss"))
        told.append(f"{budget}: {best.attention} ({best.mean('loss'):.4f})")
    return f"- The lowest loss in the whole context at {'; at '.join(told)}."


def tell_gain(full, windows):
    widest = windows[max(windows)]
    gains = [
        f"{full.mean(measure) - widest.mean(measure):+.4f} in the {where}"
        for measure, where in MEASURES.items()
    ]
    return (
        f"- From the widest sliding window, {widest.visible_keys:.1f} visible "
        f"keys, to full attention the loss changes by {', '.join(gains)}: what "
        "this model gains from further away."
    )


# --- the plot


def plot(full, points, path):
    figure, panels = reports.make_axes(len(MEASURES), width=11)
    budgets = sorted({point.budget for point in points})
    for axes, (measure, where) in zip(panels, MEASURES.items()):
        draw_full(axes, full, measure)
        for (name,), own in reports.group(points, "attention").items():
            own = sorted(own, key=lambda point: point.visible_keys)
            reports.draw(
                axes,
                name,
                [point.visible_keys for point in own],
                [point.mean(measure) for point in own],
                [point.spread(measure) for point in own],
                name,
            )
        axes.set_title(where)
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, map(str, budgets))
        axes.set_xlabel("visible keys per token (mean)")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held-out loss (nats per token)")
    panels[-1].legend(fontsize=8)
    reports.save(figure, path)


def draw_full(axes, full, measure):
    axes.axhline(
        full.mean(measure),
        color="black",
        linestyle="--",
        linewidth=1,
        label=f"full ({full.visible_keys:.0f} keys)",
    )
