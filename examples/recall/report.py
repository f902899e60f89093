"""What the recall runs gave: the table, the conclusions and the plot."""

import itertools
import math

import numpy as np

from examples.shared import reports
from examples.shared.attentions import ATTENTIONS


def write(arguments, runs, measured):
    """Prints the table, writes it and a plot; returns the paths.

    Args:
        arguments: of the command line.
        runs: list of `Run`.
        measured: the `Examples` that were graded.
    """
    table = "\n\n".join(
        [tabulate(arguments, runs, measured), conclude(arguments, runs)]
    )
    paths = [reports.write_table(arguments.output, table)]
    if reports.can_plot():
        paths.append(arguments.output / "accuracy_by_distance.png")
        plot(arguments, runs, measured.chance, paths[-1])
    return paths


def by_attention(runs):
    """`{attention: its runs}`, in order."""
    groups = reports.group(runs, "attention")
    return {attention: own for (attention,), own in groups.items()}


def buckets_of(arguments):
    return list(itertools.pairwise(arguments.buckets))


def accuracies(runs):
    """Float `[seeds, buckets]`."""
    return np.array([run.measured["accuracy"] for run in runs])


def total_accuracy(run):
    """Over the questions of all buckets."""
    accuracy, count = run.measured["accuracy"], run.measured["count"]
    right = sum(a * c for a, c in zip(accuracy, count) if c)
    return right / sum(count) if sum(count) else math.nan


def summarize(run):
    told = " ".join(f"{100 * x:.0f}" for x in run.measured["accuracy"])
    return f"% right by distance: {told}  ({run.seconds:.0f} s)"


def tabulate(arguments, runs, measured):
    buckets = [f"{low}-{high - 1}" for low, high in buckets_of(arguments)]
    columns = ["attention", "pattern", "visible keys per token"]
    columns += [*buckets, "all", "s per run"]
    rows = [row_of(*pair) for pair in by_attention(runs).items()]
    heading = (
        f"{arguments.task}, trained from the start: {arguments.short_steps} "
        f"steps on short sequences, {arguments.steps} on {arguments.length} "
        f"tokens; {arguments.num_layers} layers. % right over "
        f"{measured.is_answer.sum():,} questions, by the distance of the "
        "answer in tokens; the chance level is "
        f"{100 * measured.chance:.1f} %. Mean ± standard deviation over seeds "
        f"{arguments.seeds}."
    )
    return f"{heading}\n\n{reports.tabulate(columns, rows)}"


def row_of(attention, runs):
    """The cells of an attention."""
    total = np.array([[total_accuracy(run)] for run in runs])
    return [
        attention,
        reports.in_cell(runs[0].pattern),
        f"{runs[0].visible_keys:.1f}",
        *[with_spread(*x) for x in both(accuracies(runs)) + both(total)],
        f"{np.mean([run.seconds for run in runs]):.0f}",
    ]


def both(values):
    """Mean and spread of each column."""
    return list(zip(values.mean(axis=0), reports.spread(values)))


def with_spread(mean, deviation):
    if np.isnan(mean):
        return ""
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}"


def farthest_of_window(arguments, run):
    """The largest distance that layers of sliding windows reach."""
    return arguments.num_layers * (run.pattern.window_size - 1)


def conclude(arguments, runs):
    """What the runs show beyond the reach of the sliding window."""
    groups = by_attention(runs)
    if "sliding_window" not in groups:
        return "Without `sliding_window` there is nothing to compare with."
    reach = farthest_of_window(arguments, groups["sliding_window"][0])
    beyond = [low > reach for low, _ in buckets_of(arguments)]
    if not any(beyond):
        return (
            f"The sliding windows reach {reach} tokens back, further than the "
            "last bucket begins: nothing is beyond them."
        )
    first = buckets_of(arguments)[beyond.index(True)][0]
    lines = [
        f"{arguments.num_layers} layers of sliding windows reach {reach} "
        f"tokens back. From {first} tokens on, right in %, each seed:",
        "",
    ]
    for attention, own in groups.items():
        fractions = [100 * accuracy_beyond(run, beyond) for run in own]
        told = ", ".join(f"{x:.1f}" for x in fractions)
        lines.append(f"- {attention}: {told}")
    return "\n".join(lines)


def accuracy_beyond(run, chosen):
    """The accuracy over the questions of some buckets."""
    count = np.where(chosen, run.measured["count"], 0)
    right = np.nan_to_num(run.measured["accuracy"]) * count
    return float(right.sum() / count.sum()) if count.sum() else float("nan")


def plot(arguments, runs, chance, path):
    figure, (axes,) = reports.make_axes()
    middles = [(low + high - 1) / 2 for low, high in buckets_of(arguments)]
    for attention, own in by_attention(runs).items():
        fractions = accuracies(own)
        label = f"{attention} ({own[0].visible_keys:.0f} keys)"
        reports.draw(axes, attention, middles, *zip(*both(fractions)), label)
        if attention == "sliding_window":
            reach = farthest_of_window(arguments, own[0])
            colour = ATTENTIONS[attention].style[0]
            axes.axvline(reach, color=colour, linewidth=0.8, linestyle=":")
    axes.axhline(chance, color="grey", linewidth=1, linestyle=":")
    axes.annotate(
        "chance level", (middles[-1], chance), va="bottom", ha="right"
    )
    axes.set_xlabel("distance of the answer (tokens)")
    axes.set_ylabel("fraction of right answers")
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    reports.save(figure, path)
