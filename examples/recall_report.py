"""What the recall runs gave: the table, the conclusions and the plot."""

import importlib.util
import itertools

import numpy as np
from attentions import ATTENTIONS
from attentions import describe


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
    arguments.output.mkdir(parents=True, exist_ok=True)
    paths = [arguments.output / "table.md"]
    paths[0].write_text(table + "\n", encoding="utf-8")
    print(f"\n{table}\n")
    if importlib.util.find_spec("matplotlib") is not None:
        paths.append(arguments.output / "accuracy_by_distance.png")
        plot(arguments, runs, measured.chance, paths[-1])
    return paths


def by_attention(runs):
    """`{attention: its runs}`, in order."""
    return {
        attention: [run for run in runs if run.attention == attention]
        for attention in dict.fromkeys(run.attention for run in runs)
    }


def buckets_of(arguments):
    return list(itertools.pairwise(arguments.buckets))


def accuracies(runs):
    """Float `[seeds, buckets]`."""
    return np.array([run.accuracy for run in runs])


def spread(values):
    """Standard deviation over seeds, 0 of one seed."""
    if len(values) == 1:
        return np.zeros(values.shape[1:])
    return np.std(values, axis=0, ddof=1)


def tabulate(arguments, runs, measured):
    columns = [f"{low}-{high - 1}" for low, high in buckets_of(arguments)]
    lines = [
        f"Trained from the start: {arguments.short_steps} steps on short "
        f"sequences, {arguments.steps} on {arguments.length} tokens; "
        f"{arguments.num_layers} layers, {arguments.num_pairs} pairs. % right "
        "over "
        f"{measured.is_answer.sum():,} questions, by the distance of the value "
        f"in tokens; a guess is right in {100 * measured.chance:.1f} %. Mean ± "
        f"standard deviation over seeds {arguments.seeds}.",
        "",
        "| attention | windows | visible keys per token | "
        + " | ".join(columns)
        + " | all | s per run |",
        "|---|---|---:|" + "---:|" * (len(columns) + 2),
    ]
    for attention, own in by_attention(runs).items():
        shares = accuracies(own)
        total = np.array([[run.total_accuracy()] for run in own])
        cells = [with_spread(*pair) for pair in both(shares) + both(total)]
        keys = own[0].visible_keys
        lines.append(
            f"| {attention} | {describe(own[0].options)} | {keys:.1f} | "
            + " | ".join(cells)
            + f" | {np.mean([run.seconds for run in own]):.0f} |"
        )
    return "\n".join(lines)


def both(values):
    """Mean and spread of each column."""
    return list(zip(values.mean(axis=0), spread(values)))


def with_spread(mean, deviation):
    if np.isnan(mean):
        return ""
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}"


def farthest_of_window(arguments, run):
    """The largest distance that layers of sliding windows reach."""
    return arguments.num_layers * (run.options["window_size"] - 1)


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
        shares = [100 * share_beyond(run, beyond) for run in own]
        told = ", ".join(f"{share:.1f}" for share in shares)
        lines.append(f"- {attention}: {told}")
    return "\n".join(lines)


def share_beyond(run, chosen):
    """The accuracy over the questions of some buckets."""
    count = np.where(chosen, run.count, 0)
    right = np.nan_to_num(run.accuracy) * count
    return float(right.sum() / count.sum()) if count.sum() else float("nan")


def plot(arguments, runs, chance, path):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    middles = [(low + high - 1) / 2 for low, high in buckets_of(arguments)]
    for attention, own in by_attention(runs).items():
        shares = accuracies(own)
        colour, marker, line = ATTENTIONS[attention].style
        axes.errorbar(
            middles,
            shares.mean(axis=0),
            yerr=spread(shares),
            label=f"{attention} ({own[0].visible_keys:.0f} keys)",
            color=colour,
            marker=marker,
            linestyle=line,
            capsize=3,
        )
        if attention == "sliding_window":
            reach = farthest_of_window(arguments, own[0])
            axes.axvline(reach, color=colour, linewidth=0.8, linestyle=":")
    axes.axhline(chance, color="grey", linewidth=1, linestyle=":")
    axes.annotate("chance", (middles[-1], chance), va="bottom", ha="right")
    axes.set_xlabel("distance of the value (tokens)")
    axes.set_ylabel("share of right answers")
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
