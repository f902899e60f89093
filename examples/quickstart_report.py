"""What the quickstart found: the table, the conclusions and the plot."""

import dataclasses

import matplotlib
import numpy as np
from quickstart_patterns import SLIDING_WINDOW
from quickstart_patterns import describe
from quickstart_patterns import is_random

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

SMALLEST_DIFFERENCE = 0.002  # nats per byte; less is called equal


@dataclasses.dataclass
class Result:
    """The held-out loss of one attention at one budget."""

    name: str
    budget: int
    options: dict  # of `hub.swap_attention`
    visible_keys: float
    losses: list  # one for each draw of permutations

    @property
    def mean(self):
        return float(np.mean(self.losses))

    @property
    def spread(self):
        """Standard deviation over permutations; 0 where nothing is drawn."""
        if len(self.losses) == 1:
            return 0.0
        return float(np.std(self.losses, ddof=1))


def names_of(results):
    """The attentions that were compared, in order."""
    return list(dict.fromkeys(result.name for result in results))


def write(arguments, no_context, full_loss, results, fine_tuned, samples):
    """Prints everything, writes three files, and returns their paths."""
    table = comparison_table(arguments, no_context, full_loss, results)
    tuned_table = fine_tuning_table(fine_tuned)
    conclusions = conclude(full_loss, results, fine_tuned)
    sample_text = "\n".join(
        f"--- {name}\n{sample}" for name, sample in samples.items()
    )
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    paths = [
        folder / name
        for name in (
            "table.md",
            "loss_against_visible_keys.png",
            "samples.txt",
        )
    ]
    document = "\n\n".join([table, tuned_table, conclusions]) + "\n"
    paths[0].write_text(document, encoding="utf-8")
    plot(arguments, full_loss, results, fine_tuned, paths[1])
    paths[2].write_text(sample_text + "\n", encoding="utf-8")
    print(f"\n{sample_text}\n\n{document}")
    return paths


def comparison_table(arguments, no_context, full_loss, results):
    full_keys = (arguments.length + 1) / 2
    lines = [
        "Weights trained with full attention, loss in nats per byte on "
        "held-out files, no training after the swap; ± is the standard "
        f"deviation over {arguments.permutations} draws of permutations.",
        "",
        "| attention | windows | visible keys per token | loss | ± | "
        "above full |",
        "|---|---|---:|---:|---:|---:|",
        f"| none (byte frequencies) | | 0 | {no_context:.4f} | | "
        f"{no_context - full_loss:+.4f} |",
        f"| full | | {full_keys:.1f} | {full_loss:.4f} | | |",
    ]
    for r in results:
        spread = f"{r.spread:.4f}" if is_random(r.options) else ""
        lines.append(
            f"| {r.name} | {describe(r.options)} | {r.visible_keys:.1f} | "
            f"{r.mean:.4f} | {spread} | {r.mean - full_loss:+.4f} |"
        )
    return "\n".join(lines)


def fine_tuning_table(pairs):
    lines = [
        "Both fine-tuned from those weights, for the same steps on the same "
        "text.",
        "",
        "| attention | windows | visible keys per token | loss before | "
        "loss after |",
        "|---|---|---:|---:|---:|",
    ]
    for before, after in pairs:
        lines.append(
            f"| {before.name} | {describe(before.options)} | "
            f"{before.visible_keys:.1f} | {with_spread(before)} | "
            f"{with_spread(after)} |"
        )
    return "\n".join(lines)


def with_spread(result):
    if not is_random(result.options):
        return f"{result.mean:.4f}"
    return f"{result.mean:.4f} ± {result.spread:.4f}"


def conclude(full_loss, results, fine_tuned):
    """What this run shows, whoever wins."""
    lines = ["What this run shows, at equal visible keys:", ""]
    local = {r.budget: r for r in results if r.name == SLIDING_WINDOW}
    for name in names_of(results):
        if name == SLIDING_WINDOW:
            continue
        verdicts = {"lower": [], "as": [], "higher": []}
        for r in results:
            if r.name == name:
                verdicts[verdict(r, local[r.budget])].append(str(r.budget))
        told = [
            f"{TOLD[key]} at {', '.join(budgets)}"
            for key, budgets in verdicts.items()
            if budgets
        ]
        lines.append(f"- {name}: {'; '.join(told)} visible keys.")
    widest = max(results, key=lambda r: (r.name == SLIDING_WINDOW, r.budget))
    lines.append(
        "- From the widest sliding window to full attention the loss changes "
        f"by {full_loss - widest.mean:+.4f}: what this model gains from "
        "further away."
    )
    (_, sliding), (_, gated) = fine_tuned
    lines.append(
        f"- After fine-tuning at {sliding.budget} visible keys, the gated "
        f"small world has {TOLD[verdict(gated, sliding)]}: {gated.mean:.4f} "
        f"and {sliding.mean:.4f}."
    )
    return "\n".join(lines)


TOLD = {
    "lower": "a lower loss than the sliding window",
    "as": "the loss of the sliding window, within the spread or 0.002,",
    "higher": "a higher loss than the sliding window",
}


def verdict(result, other):
    difference = result.mean - other.mean
    noise = max(result.spread, other.spread, SMALLEST_DIFFERENCE)
    if abs(difference) <= noise:
        return "as"
    return "lower" if difference < 0 else "higher"


# Okabe and Ito: colours that colour-blind readers tell apart; marker and line
# differ as well, for print without colours.
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#E69F00", "D", ":"),
    ("#009E73", "^", "-"),
    ("#CC79A7", "v", "-."),
)


def plot(arguments, full_loss, results, fine_tuned, path):
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    axes.axhline(full_loss, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"full attention ({(arguments.length + 1) / 2:.0f} keys)",
        (0.99, full_loss),
        xycoords=("axes fraction", "data"),
        xytext=(0, -4),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    for name, (colour, marker, line) in zip(names_of(results), STYLES):
        own = [r for r in results if r.name == name]
        axes.errorbar(
            [r.visible_keys for r in own],
            [r.mean for r in own],
            yerr=[r.spread for r in own],
            label=name,
            color=colour,
            marker=marker,
            linestyle=line,
            capsize=3,
        )
    for (_, after), (colour, marker) in zip(
        fine_tuned, (("#0072B2", "o"), ("black", "*"))
    ):
        axes.errorbar(
            [after.visible_keys],
            [after.mean],
            yerr=[after.spread],
            label=f"{after.name}, fine-tuned",
            color=colour,
            marker=marker,
            markersize=10,
            markerfacecolor="white",
            linestyle="none",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(arguments.visible_keys, map(str, arguments.visible_keys))
    axes.set_xlabel("visible keys per token (mean)")
    axes.set_ylabel("held-out loss (nats per byte)")
    axes.margins(y=0.12)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
