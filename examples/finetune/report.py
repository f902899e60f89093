"""What the fine-tuning gave: the table, the loss curve and a sample."""

import numpy as np

from examples.shared import reports

SMALLEST_DIFFERENCE = 0.002  # nats per token; less is called equal


def write(folder, pattern, full_loss, before, curve, sample):
    """Prints sample and table, writes them and a plot, returns the paths."""
    table = tabulate(pattern, full_loss, before, curve)
    print(f"\n{sample}\n")
    paths = [reports.write_table(folder, table), folder / "sample.txt"]
    paths[1].write_text(sample + "\n", encoding="utf-8")
    if reports.can_plot():
        paths.append(folder / "loss.png")
        plot(full_loss, before, curve, paths[-1])
    return paths


def tabulate(pattern, full_loss, before, curve):
    after = curve.held_out[-1]
    name = reports.in_cell(pattern)
    rows = (
        ("full, as it was", full_loss),
        (f"{name}, before", before),
        (f"{name}, after {len(curve.train)} steps", after),
    )
    return "\n".join(
        [
            "| attention | held-out loss, nats per token | above full |",
            "|---|---:|---:|",
            *(
                f"| {name} | {loss:.4f} | {loss - full_loss:+.4f} |"
                for name, loss in rows
            ),
            "",
            conclude(after - full_loss),
        ]
    )


def conclude(difference):
    if difference > SMALLEST_DIFFERENCE:
        return (
            "After fine-tuning the sparse attention still loses to full "
            f"attention, by {difference:.4f} nats per token."
        )
    relation = "below" if difference < -SMALLEST_DIFFERENCE else "equal to"
    return (
        f"After fine-tuning the loss is {relation} that of full attention "
        f"({difference:+.4f}), which has read less text: it was not fine-tuned."
    )


def plot(full_loss, before, curve, path):
    figure, (axes,) = reports.make_axes()
    steps = np.arange(1, len(curve.train) + 1)
    axes.plot(steps, curve.train, color="#0072B2", alpha=0.25)
    smoothed_steps, smoothed = smooth(curve.train, max(1, len(steps) // 10))
    axes.plot(smoothed_steps, smoothed, color="#0072B2", label="training")
    axes.plot(
        [0, *curve.held_out_steps],
        [before, *curve.held_out],
        color="#D55E00",
        marker="o",
        label="held out",
    )
    axes.axhline(
        full_loss,
        color="black",
        linestyle="--",
        linewidth=1,
        label="full attention, held out, not fine-tuned",
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    reports.save(figure, path)


def smooth(losses, width):
    """Steps and means of `width` losses that follow one another."""
    means = np.convolve(losses, np.ones(width) / width, mode="valid")
    return np.arange(width, len(losses) + 1) - (width - 1) / 2, means
