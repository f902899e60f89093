"""What training through each attention gave: tables, verdicts and a plot."""

import csv

import numpy as np

from examples.shared import reports
from examples.shared.attentions import ATTENTIONS

# What is compared with what, and the question that it answers.
QUESTIONS = (
    ("small_world", "sliding_window", "Do permutations help a window?"),
    ("small_world", "gated_window", "Or is it the gate?"),
    ("small_world", "two_windows", "Or the second term?"),
    ("small_world", "half_window", "Or the narrower window?"),
    ("half_window", "sliding_window", "Does a narrow window learn sooner?"),
    ("small_world", "full", "How near is the small world to full attention?"),
    ("stochastic", "sliding_window", "Can permutations stand alone?"),
    ("stochastic_block", "stochastic", "Blocks or windows?"),
    ("small_world_block", "small_world", "And in the small world?"),
    ("small_world_per_head", "small_world", "One permutation for each head?"),
    ("stochastic_per_head", "stochastic", "And without the local window?"),
    ("small_world_fixed", "small_world", "One permutation for all steps?"),
    ("small_world", "block_routed", "And mixture of block attention?"),
)
_MEASURES = {"whole context": "loss", "last quarter": "last_quarter"}


class Results:
    """The numbers of some runs.

    Args:
        runs: finished ones; all attentions have the same seeds.
        length: tokens of a sequence.
    """

    def __init__(self, runs, length):
        self.seeds = list(dict.fromkeys(run.seed for run in runs))
        self.patterns = {run.attention: run.pattern for run in runs}
        self.summaries = {
            (run.attention, run.seed): run.summary() for run in runs
        }
        self.visible_keys = {
            name: pattern.keys_per_token(length, is_causal=True)
            for name, pattern in self.patterns.items()
        }

    def __contains__(self, attention):
        return attention in self.patterns

    def of(self, attention):
        """The summaries of all seeds."""
        return [self.summaries[attention, seed] for seed in self.seeds]

    def loss(self, attention):
        """Float `[seeds]`, nats per token."""
        return np.array([s["held_out_loss"] for s in self.of(attention)])

    def last_quarter(self, attention):
        """Float `[seeds]`: the loss of tokens in the last of the context."""
        by_quarter = "held_out_loss_by_quarter_of_context"
        return np.array([s[by_quarter][-1] for s in self.of(attention)])

    def gates(self, attention):
        """Means over seeds `[layers, terms]`, or `None`."""
        gates = [s.get("gates_by_layer") for s in self.of(attention)]
        return np.mean(gates, axis=0) if all(gates) else None

    def seconds(self, attention):
        return np.mean([s["seconds_of_training"] for s in self.of(attention)])


def write(arguments, runs):
    """Prints the tables, writes them, all numbers and a plot."""
    results = Results(runs, arguments.length)
    text = "\n\n".join(
        [
            tabulate(results),
            *filter(None, [answer(results), tabulate_gates(results)]),
            tabulate_seeds(results),
        ]
    )
    paths = [
        reports.write_table(arguments.output, text),
        arguments.output / "runs.csv",
    ]
    write_all(results, paths[1])
    if reports.can_plot():
        paths.append(arguments.output / "loss_by_attention.png")
        plot(results, paths[-1])
    return paths


def tabulate(results):
    some = results.of(next(iter(results.patterns)))[0]
    heading = (
        f"Trained from scratch, {some['steps']:,} steps, {some['tokens']:,} "
        f"tokens. Loss in nats per token over {some['held_out_tokens']:,} "
        "held-out tokens, and over those of them in the last quarter of the "
        "context. Mean ± standard deviation over seeds "
        f"{results.seeds}; differences from full attention are taken seed by "
        "seed."
    )
    columns = ["attention", "pattern", "visible keys per token"]
    for what in ("loss", "last quarter"):
        columns += [what, "above full"]
    columns += ["parameters", "s of training"]
    rows = [row_of(results, name) for name in results.patterns]
    return f"{heading}\n\n{reports.tabulate(columns, rows)}"


def row_of(results, name):
    """The cells of an attention."""
    cells = [
        name,
        reports.in_cell(results.patterns[name]),
        f"{results.visible_keys[name]:.1f}",
    ]
    for measure in _MEASURES.values():
        cells += cells_of(results, name, measure)
    return [
        *cells,
        f"{results.of(name)[0]['parameters']:,}",
        f"{results.seconds(name):.0f}",
    ]


def cells_of(results, name, measure):
    """The loss, and how far it is above that of full attention."""
    losses = getattr(results, measure)(name)
    if name == "full" or "full" not in results:
        return [reports.with_spread(losses), ""]
    above = losses - getattr(results, measure)("full")
    return [reports.with_spread(losses), reports.with_spread(above, "+")]


def answer(results):
    """The questions whose runs are there, with what the seeds say."""
    lines = [
        "The first against the second at equal visible keys, in nats per "
        "token, seed by seed; below zero the first is better:",
        "",
        "| | | question | whole context | last quarter | better with |",
        "|---|---|---|---:|---:|---|",
    ]
    asked = [
        (a, b, q) for a, b, q in QUESTIONS if a in results and b in results
    ]
    for first, second, question in asked:
        differences = [
            getattr(results, measure)(first) - getattr(results, measure)(second)
            for measure in _MEASURES.values()
        ]
        told = [reports.with_spread(each, "+") for each in differences]
        lines.append(
            f"| {first} | {second} | {question} | {' | '.join(told)} | "
            f"{verdict(differences)} |"
        )
    return "\n".join(lines) if asked else ""


def verdict(differences):
    """With how many seeds the first one is better."""
    better = [f"{np.sum(each < 0)} of {len(each)}" for each in differences]
    return ", ".join(better) + " seeds"


def tabulate_gates(results):
    """Mean gates, or an empty string."""
    gates = {name: results.gates(name) for name in results.patterns}
    gates = {name: value for name, value in gates.items() if value is not None}
    if not gates:
        return ""
    layers = max(len(value) for value in gates.values())
    lines = [
        "Gates after training, in the order of the terms: means over held-out "
        "tokens, heads and seeds, by layer. They start at 0.50, if "
        "--gate-bias does not say else.",
        "",
        "| attention | " + " | ".join(map(str, range(layers))) + " | mean |",
        "|---|" + "---:|" * (layers + 1),
    ]
    for name, value in gates.items():
        told = [
            " / ".join(f"{gate:.2f}" for gate in gates)
            for gates in [*value, value.mean(axis=0)]
        ]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines)


def tabulate_seeds(results):
    """Every run."""
    lines = [
        "Every run, loss over the whole context and in its last quarter:",
        "",
        "| attention | "
        + " | ".join(f"seed {seed}" for seed in results.seeds)
        + " |",
        "|---|" + "---:|" * len(results.seeds),
    ]
    for name in results.patterns:
        pairs = zip(results.loss(name), results.last_quarter(name))
        told = [f"{whole:.4f}, {last:.4f}" for whole, last in pairs]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines)


def write_all(results, path):
    """A row for each run, with its command."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["attention", "seed", "loss", "last_quarter", "seconds", "command"]
        )
        for name in results.patterns:
            for seed, summary, whole, last in zip(
                results.seeds,
                results.of(name),
                results.loss(name),
                results.last_quarter(name),
            ):
                seconds = summary["seconds_of_training"]
                command = summary["command"]
                writer.writerow([name, seed, whole, last, seconds, command])


def plot(results, path):
    """Every seed as a point, with the mean, for both measures."""
    figure, panels = reports.make_axes(len(_MEASURES), width=9.6)
    names = list(results.patterns)
    for axes, (title, measure) in zip(panels, _MEASURES.items()):
        for row, name in enumerate(names):
            losses = getattr(results, measure)(name)
            colour, marker, _ = ATTENTIONS[name].style
            axes.scatter(
                losses, [row] * len(losses), c=colour, marker=marker, alpha=0.7
            )
            axes.plot([np.mean(losses)] * 2, [row - 0.3, row + 0.3], c=colour)
        if "full" in results:
            mean = np.mean(getattr(results, measure)("full"))
            axes.axvline(mean, color="black", linestyle="--", linewidth=0.8)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("held-out loss (nats per token)")
        is_first = axes is panels[0]
        axes.set_yticks(
            range(len(names)), names if is_first else [""] * len(names)
        )
        axes.invert_yaxis()
        axes.grid(alpha=0.3)
    reports.save(figure, path)
