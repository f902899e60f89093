"""What the quickstart found: the table, the conclusions and the plot."""

import dataclasses

import numpy as np

from examples.shared import reports
from examples.shared.attentions import ATTENTIONS
from keras_sa.patterns import Pattern

EQUAL_LOSS = 0.01  # nats per token; less is called equal
HEADINGS = f"{'attention':20s}  keys    loss"


@dataclasses.dataclass
class Result:
    """The held-out loss of one attention at one budget."""

    name: str
    budget: float
    pattern: Pattern
    visible_keys: float
    losses: list  # one for each draw of permutations

    @property
    def mean(self):
        return float(np.mean(self.losses))

    @property
    def spread(self):
        """Standard deviation over permutations; 0 of a single draw."""
        return float(reports.spread(self.losses))

    @property
    def loss(self):
        """Mean and spread in words."""
        return reports.with_spread(self.losses)

    def summary(self):
        return f"{self.name:20s} {self.visible_keys:5.1f}  {self.loss}"


def write(arguments, no_context, results, fine_tuned, samples):
    """Prints everything, writes it and a plot, and returns the paths.

    Args:
        arguments: of the command line.
        no_context: loss of the frequencies of tokens.
        results: each `Result` without training, full attention's first.
        fine_tuned: the `Result` before and after for each attention, full
            attention's first and the sliding window's second.
        samples: texts by their titles.
    """
    full, *sparse = results
    document = "\n\n".join(
        [
            comparison_table(arguments, no_context, full, sparse),
            fine_tuning_table(arguments, fine_tuned),
            conclude(full, sparse, fine_tuned),
        ]
    )
    paths = [
        reports.write_samples(arguments.output, samples),
        reports.write_table(arguments.output, document),
    ]
    if reports.can_plot():
        paths.append(arguments.output / "loss_against_visible_keys.png")
        plot(arguments, full, sparse, fine_tuned, paths[-1])
    return paths


def comparison_table(arguments, no_context, full, sparse):
    lines = [
        "Weights trained with full attention, loss in nats per token on "
        "held-out files, nothing trained after the swap"
        + spread_note(arguments),
        "",
        "| attention | pattern | visible keys per token | loss | above full |",
        "|---|---|---:|---:|---:|",
        f"| none (token frequencies) | | 0 | {no_context:.4f} | "
        f"{no_context - full.mean:+.4f} |",
        f"| full | | {full.visible_keys:.1f} | {full.loss} | |",
    ]
    lines += [
        f"| {r.name} | {reports.in_cell(r.pattern)} | {r.visible_keys:.1f} | "
        f"{r.loss} | {r.mean - full.mean:+.4f} |"
        for r in sparse
    ]
    return "\n".join(lines)


def spread_note(arguments):
    if arguments.permutations == 1:
        return "."
    return (
        "; ± is the standard deviation over "
        f"{arguments.permutations} draws of permutations."
    )


def fine_tuning_table(arguments, pairs):
    lines = [
        f"Each fine-tuned from those weights, {arguments.steps} steps on the "
        "same text.",
        "",
        "| attention | pattern | visible keys per token | loss before | "
        "loss after | change |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {before.name} | {reports.in_cell(before.pattern)} | "
        f"{before.visible_keys:.1f} | {before.loss} | {after.loss} | "
        f"{after.mean - before.mean:+.4f} |"
        for before, after in pairs
    ]
    return "\n".join(lines)


def conclude(full, sparse, fine_tuned):
    """What this run shows, whoever wins."""
    local = {r.budget: r for r in sparse if r.name == "sliding_window"}
    others = dict.fromkeys(r.name for r in sparse)
    del others["sliding_window"]
    tuned_full, tuned_local, tuned_gated = (after for _, after in fine_tuned)
    widest = local[max(local)]
    return "\n".join(
        [
            "What this run shows, against the sliding window of as many "
            f"visible keys (within {EQUAL_LOSS} nats or the spread is equal):",
            "",
            *(
                tell(name, [r for r in sparse if r.name == name], local)
                for name in others
            ),
            f"- From {widest.budget} keys to all before a token, the loss "
            f"changes by {full.mean - widest.mean:+.4f}: what the model gains "
            "from further away.",
            f"- Fine-tuned at {tuned_local.budget} keys, the gated small world "
            f"has {LOSS[verdict(tuned_gated, tuned_local)]}: "
            f"{tuned_gated.mean:.4f} against {tuned_local.mean:.4f}. Full "
            f"attention gets to {tuned_full.mean:.4f} in the same steps.",
        ]
    )


def tell(name, results, local):
    """A line that sorts budgets into lower, equal and higher losses."""
    budgets = {key: [] for key in LOSS}
    for r in results:
        budgets[verdict(r, local[r.budget])].append(str(r.budget))
    told = [
        f"{LOSS[key]} at {', '.join(found)}"
        for key, found in budgets.items()
        if found
    ]
    return f"- {name}: {'; '.join(told)} keys."


LOSS = {
    "lower": "a lower loss",
    "equal": "an equal loss",
    "higher": "a higher loss",
}


def verdict(result, other):
    difference = result.mean - other.mean
    if abs(difference) <= max(result.spread, other.spread, EQUAL_LOSS):
        return "equal"
    return "lower" if difference < 0 else "higher"


def plot(arguments, full, sparse, fine_tuned, path):
    """What each attention loses against full attention without training."""
    figure, (axes,) = reports.make_axes()
    # Losses of random keys alone are far from the others'.
    axes.set_yscale("symlog", linthresh=EQUAL_LOSS)
    axes.margins(y=0.1)
    for name in dict.fromkeys(r.name for r in sparse):
        own = [r for r in sparse if r.name == name]
        colour, marker, line = ATTENTIONS[name].style
        points(axes, own, full, name, colour, marker=marker, linestyle=line)
    for _, after in fine_tuned:
        colour, marker, _ = ATTENTIONS[after.name].style
        points(
            axes,
            [after],
            full,
            f"{after.name}, fine-tuned",
            colour,
            marker=marker,
            markersize=10,
            markerfacecolor="white",
            linestyle="none",
        )
    axes.axhline(0, color="black", linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = [*arguments.visible_keys, round(full.visible_keys)]
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_xlabel("visible keys per token (mean)")
    axes.set_ylabel("held-out loss above full attention's (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    reports.save(figure, path)


def points(axes, results, full, label, colour, **style):
    axes.errorbar(
        [r.visible_keys for r in results],
        [r.mean - full.mean for r in results],
        yerr=[r.spread for r in results],
        label=label,
        color=colour,
        capsize=3,
        **style,
    )
