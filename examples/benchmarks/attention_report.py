"""Tables, JSON and plots of the benchmark of attentions."""

import itertools
import json

from examples.benchmarks.attention_measuring import PASSES
from examples.benchmarks.attention_measuring import ratio
from examples.benchmarks.attention_table import FULL
from examples.benchmarks.gpu_work import print_table

HEAD = (
    "attention",
    "keys/token",
    "forward ms",
    "x full",
    "x bound",
    "fwd + bwd ms",
    "x full",
    "x bound",
    "first call s",
)
PEERS_HEAD = (
    "attention",
    "against",
    "what",
    "keys/token",
    "forward",
    "fwd + bwd",
)


def print_results(problem, attentions, results):
    """All tables of one problem."""
    print(f"\n### n = {problem.length}, w = {problem.window}\n")
    products = results["products"]
    rates = (f"{what}: {1e-9 * x:.0f}" for what, x in products.items())
    print("GFLOP/s of products; the faster bounds:", "; ".join(rates), "\n")
    figures, memory = results["figures"], results["memory"]
    head = [*HEAD, *(["MB: forward, both"] if memory else [])]
    peak = max(products.values())
    print_table(
        head,
        [
            [
                *_time_cells(name, figures, peak),
                *([_memory_cell(memory.get(name))] if memory else []),
            ]
            for name in figures
        ],
    )
    comparisons = compare(attentions, figures)
    if comparisons:
        print("Time of the first over time of the second:\n")
        print_table(PEERS_HEAD, comparisons)
    for name, reason in results["refused"].items():
        print(f"- {name}: no figure. {' '.join(reason.split())[:300]}")


def _time_cells(name, all_figures, peak):
    figures, full = all_figures[name], all_figures.get(FULL)
    cells = [name, f"{figures.visible_keys:.0f}"]
    for of_pass in PASSES:
        if of_pass not in figures.seconds:
            cells += [""] * 3
            continue
        seconds = figures.median(of_pass)
        cells += [
            f"{1e3 * seconds:.1f}",
            f"{ratio(full, figures, of_pass):.1f}" if full else "",
            f"{seconds * peak / figures.flops[of_pass]:.1f}",
        ]
    first = (f"{x:.1f}" for x in figures.first_call.values())
    return [*cells, ", ".join(first)]


def _memory_cell(grown):
    return ", ".join(f"{x:.0f}" for x in grown.values()) if grown else ""


def compare(attentions, figures):
    """Rows: an attention of this package, and one it is compared with."""
    return [
        _comparison(other, figures)
        for other in attentions
        if other.name in figures and other.reference in figures
    ]


def _comparison(other, figures):
    names = [other.reference, other.name]
    if not other.is_peer:  # an implementation, against the last of them
        names.reverse()
    first, second = (figures[name] for name in names)
    keys = (f"{x.visible_keys:.0f}" for x in (first, second))
    ratios = (
        f"{ratio(first, second, of_pass):.2f}"
        if of_pass in first.seconds and of_pass in second.seconds
        else "no gradients"
        for of_pass in PASSES
    )
    what = "layer" if other.is_layer else "core"
    return [*names, what, " : ".join(keys), *ratios]


def as_json(problem, results):
    """What goes into the file, of one problem."""
    figures = results["figures"]
    peak = max(results["products"].values())
    return {
        "length": problem.length,
        "window": problem.window,
        "flops_per_second": results["products"],
        "attentions": {
            name: {
                "visible_keys": of.visible_keys,
                "seconds": of.seconds,
                "median_seconds": {x: of.median(x) for x in of.seconds},
                "bound_seconds": {x: of.flops[x] / peak for x in of.seconds},
                "first_call_seconds": of.first_call,
                "peak_megabytes": results["memory"].get(name),
            }
            for name, of in figures.items()
        },
        "no_figure": results["refused"],
    }


def print_summary(records):
    """Of several problems: the ratios of each attention, side by side."""
    names = list(dict.fromkeys(x for r in records for x in r["attentions"]))
    heads = [f"{r['length']}, {r['window']}" for r in records]
    for title, cell in (
        ("times the bound", _bound_cell),
        ("full attention over it", _full_cell),
    ):
        print(f"\nn, w: forward / forward + backward, {title}\n")
        rows = [[name, *(cell(r, name) for r in records)] for name in names]
        print_table(["attention", *heads], [x for x in rows if any(x[1:])])


def _bound_cell(record, name):
    figures = record["attentions"].get(name)
    if figures is None:
        return ""
    seconds, bound = figures["median_seconds"], figures["bound_seconds"]
    return " / ".join(f"{seconds[x] / bound[x]:.1f}" for x in seconds)


def _full_cell(record, name):
    full = record["attentions"].get(FULL)
    figures = record["attentions"].get(name)
    if full is None or figures is None:
        return ""
    seconds = figures["median_seconds"]
    return " / ".join(
        f"{full['median_seconds'][x] / seconds[x]:.1f}" for x in seconds
    )


def write_json(path, about, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, "problems": records}, indent=1)
    path.write_text(text + "\n", "utf-8")
    print(f"\nwrote {path}")


def write_plots(folder, about, records):
    """Time and memory against the length, one file a window."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    by_window = sorted(records, key=lambda x: (x["window"], x["length"]))
    for window, group in itertools.groupby(by_window, lambda x: x["window"]):
        path = folder / f"attention_{about['backend']}_w{window}.png"
        _plot(list(group), f"{about['backend']}, w = {window}", path)
        print(f"wrote {path}")


PANELS = {
    ("median_seconds", "forward"): "forward, s",
    ("median_seconds", "both"): "forward + backward, s",
    ("peak_megabytes", "both"): "forward + backward, MB",
}


def _plot(records, title, path):
    from matplotlib import pyplot

    names = list(dict.fromkeys(x for r in records for x in r["attentions"]))
    panels = {
        label: {name: _curve(records, name, *what) for name in names}
        for what, label in PANELS.items()
    }
    # Without --memory there is nothing to draw in the last.
    panels = {k: v for k, v in panels.items() if any(x[0] for x in v.values())}
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5 * len(panels), 5), squeeze=False
    )
    for axis, (label, curves) in zip(axes[0], panels.items()):
        for name, curve in curves.items():
            axis.plot(*curve, ".-", label=name)
        axis.set(yscale="log", xlabel="tokens", ylabel=label)
        axis.set_xscale("log", base=2)
    axes[0, 0].legend(fontsize=6)
    figure.suptitle(title)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _curve(records, name, what, of_pass):
    """Lengths, and numbers above 0 to plot against them."""
    points = [
        (record["length"], numbers[of_pass])
        for record in records
        if (numbers := record["attentions"].get(name, {}).get(what))
        and numbers.get(of_pass)
    ]
    return [list(x) for x in zip(*points)] or ([], [])
