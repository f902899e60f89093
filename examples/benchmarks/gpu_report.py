"""Tables made from the figures of `gpu.py`: roofline, targets, the paper's.

Letters: `n` tokens, `H` query heads, `K` key/value heads, `D` head dim.
"""

from examples.benchmarks import gpu_attentions as attentions
from examples.benchmarks.gpu_timings import PASSES
from examples.benchmarks.gpu_timings import fastest_full
from examples.benchmarks.gpu_work import Ceilings
from examples.benchmarks.gpu_work import count_work
from examples.benchmarks.gpu_work import make_problem
from examples.benchmarks.gpu_work import print_table
from examples.benchmarks.gpu_work import sliding_problem

LEAST_OF_ROOFLINE, MOST_OVER_SLIDING, LEAST_OVER_FLEX = 0.5, 1.1, 1.3
LEAST_OVER_FULL = {32768: 28.0, 2048: 1.5}
SHORTEST_FOR_ROOFLINE = 16384

# Table 2 of arXiv 2604.00754: milliseconds of stochastic and of full attention
# by length, w = 256, FlexAttention on one A100 80 GB. Second hand: the figures
# were read in published summaries of the paper, not in the paper. They are of
# another card and perhaps of more than one attention: compare ratios.
PAPER = {2048: (5.4, 8.0), 8192: (15.2, 99.7), 32768: (52.8, 1477.0)}


def shape_problem(shape, name, capability):
    """The problem that a timed attention solves, for counting."""
    make = sliding_problem if name == attentions.SLIDING else make_problem
    return make(
        shape["length"],
        shape["head_dim"],
        window=shape["window"],
        batch_size=shape["batch"],
        num_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        capability=capability,
    )


def roofline(timings, measured, capability):
    """Rows of dictionaries: what each fused attention achieves.

    Args:
        timings: report of `gpu_timings`.
        measured: report of the ceilings.
        capability: compute capability of the GPU, 90 for 9.0.
    """
    ceilings = Ceilings(
        "measured", flops=measured["flops"], bytes=measured["bytes"]
    )
    rows = []
    for result in timings.get("shapes", {}).values():
        for name in (attentions.STOCHASTIC, attentions.SLIDING):
            figures = result["attentions"].get(name, {})
            for of_pass in PASSES:
                if of_pass not in figures:
                    continue
                problem = shape_problem(result["shape"], name, capability)
                work = count_work(problem)[of_pass]
                seconds = 1e-3 * figures[of_pass]["device"]
                rows.append(
                    {
                        **result["shape"],
                        "attention": name,
                        "pass": of_pass,
                        **_achieved(work, ceilings, seconds),
                    }
                )
    return rows


def _achieved(work, ceilings, seconds):
    bound = work.bound(ceilings)
    limits = work.limits(ceilings)
    least = max(limits["memory"], work.useful_flops / ceilings.flops)
    return {
        "bound ms": 1e3 * bound,
        "limit": max(limits, key=limits.get),
        "fraction": bound / seconds,
        "fraction of visible work": least / seconds,
        "tflops": 1e-12 * work.flops / seconds,
        "memory gbps": 1e-9 * work.memory_bytes / seconds,
        "tiles gbps": 1e-9 * work.tile_bytes / seconds,
    }


def print_roofline(rows):
    print("Roofline by the measured ceilings\n")
    print_table(
        (
            *("n", "D", "H, K", "attention", "pass", "least ms", "limit"),
            *("achieved", "of visible work", "TFLOP/s", "GB/s", "tiles' GB/s"),
        ),
        [
            (
                f"{row['length']:,}",
                row["head_dim"],
                f"{row['heads']}, {row['kv_heads']}",
                row["attention"],
                row["pass"],
                f"{row['bound ms']:.4g}",
                row["limit"],
                f"{100 * row['fraction']:.0f} %",
                f"{100 * row['fraction of visible work']:.0f} %",
                f"{row['tflops']:.0f}",
                f"{row['memory gbps']:.0f}",
                f"{row['tiles gbps']:.0f}",
            )
            for row in rows
        ],
    )


def targets(timings, roofline_rows):
    """Rows of dictionaries: each target, the figure, and whether it is met."""
    rows = []
    for result in timings.get("shapes", {}).values():
        for of_pass in PASSES:
            rows += _targets_of(result, of_pass)
    for row in roofline_rows:
        if (
            row["length"] >= SHORTEST_FOR_ROOFLINE
            and row["attention"] == attentions.STOCHASTIC
        ):
            fraction = row["fraction"]
            rows.append(
                {
                    "target": "share of the roofline >= 50 %",
                    "shape": _shape_name(row),
                    "pass": row["pass"],
                    "device": 100 * fraction,
                    "met": fraction >= LEAST_OF_ROOFLINE,
                }
            )
    return rows


def _shape_name(shape):
    return (
        f"n={shape['length']:,} D={shape['head_dim']} "
        f"H={shape['heads']} K={shape['kv_heads']}"
    )


def _targets_of(result, of_pass):
    shape, figures = result["shape"], result["attentions"]

    def milliseconds(name, clock):
        return figures.get(name, {}).get(of_pass, {}).get(clock)

    def row(target, rival, is_met):
        ratios = {}
        for clock in ("device", "eager"):
            mine = milliseconds(attentions.STOCHASTIC, clock)
            other = rival(clock)
            if mine and other:
                ratios[clock] = other / mine
        if not ratios:
            return []
        found = {"target": target, "shape": _shape_name(shape)}
        found |= {"pass": of_pass, **ratios}
        return [{**found, "met": is_met(ratios["device"])}]

    rows = []
    least = LEAST_OVER_FULL.get(shape["length"])
    if least is not None:
        rows += row(
            f"full / stochastic >= {least}",
            lambda clock: fastest_full(figures, of_pass, clock),
            lambda ratio: ratio >= least,
        )
    rows += row(
        f"FlexAttention / stochastic >= {LEAST_OVER_FLEX}",
        lambda clock: milliseconds(attentions.FLEX, clock),
        lambda ratio: ratio >= LEAST_OVER_FLEX,
    )
    rows += row(
        f"sliding / stochastic >= 1 / {MOST_OVER_SLIDING}",
        lambda clock: milliseconds(attentions.SLIDING, clock),
        lambda ratio: ratio >= 1 / MOST_OVER_SLIDING,
    )
    return rows


def print_targets(rows):
    print("Targets; MET or NOT MET by the time on the GPU\n")
    print_table(
        ("target", "shape", "pass", "on the GPU", "eager", ""),
        [
            (
                row["target"],
                row["shape"],
                row["pass"],
                f"{row['device']:.2f}",
                f"{row['eager']:.2f}" if "eager" in row else "",
                "MET" if row["met"] else "NOT MET",
            )
            for row in sorted(rows, key=lambda row: row["target"])
        ],
    )


def print_paper(timings):
    """The paper's efficiency table beside ours, forward."""
    print(
        "arXiv 2604.00754, table 2 (second hand, from published summaries: one"
        " A100, FlexAttention, w = 256) beside this run; compare ratios\n"
    )
    rows = []
    for length, (stochastic, full) in PAPER.items():
        cells = [f"{length:,}", stochastic, full, f"{full / stochastic:.1f}"]
        for dim in (64, 128):
            cells += _our_cells(timings, length, dim)
        rows.append(cells)
    ours = [
        f"D={dim}: {what}"
        for dim in (64, 128)
        for what in ("stochastic ms", "full ms", "x")
    ]
    head = ("n", "paper: stochastic ms", "paper: full ms", "paper: x", *ours)
    print_table(head, rows)


def _our_cells(timings, length, dim):
    wanted = f"n={length:,} D={dim} H=16 K=16"
    result = timings.get("shapes", {}).get(wanted)
    figures = result["attentions"] if result else {}
    mine = figures.get(attentions.STOCHASTIC, {}).get("forward")
    full = fastest_full(figures, "forward")
    if not mine or not full:
        return ["-", "-", "-"]
    ratio = full / mine["device"]
    return [f"{mine['device']:.4g}", f"{full:.4g}", f"{ratio:.1f}"]
