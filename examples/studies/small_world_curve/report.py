"""What the small-world curve tells: a table, a figure."""

from examples.shared import command_line
from examples.studies.small_world_curve import plotting
from examples.studies.small_world_curve.curves import small_world_curve
from examples.studies.small_world_curve.curves import watts_strogatz_curve
from keras_sa.analysis.command.progress import Progress
from keras_sa.analysis.command.report import Report
from keras_sa.analysis.command.report import number

_MOST_REWIRED = 2**14  # nodes; networkx takes a minute for more


def main(arguments):
    progress = Progress()
    report = curve_report(arguments, progress)
    progress.close()
    print(report.markdown())
    command_line.announce_end(report.write(arguments.output, "png"))


def curve_report(arguments, progress):
    """A `Report` with the curve and, of few nodes, that of rewired rings."""
    options = {"num_sources": arguments.samples, "seed": arguments.seed}
    curve = small_world_curve(
        arguments.length,
        arguments.degree,
        progress=progress.stage("small-world curve"),
        **options,
    )
    curves, rewired = {"": curve}, None
    if curve.length <= _MOST_REWIRED:
        progress.stage("rewired rings")
        rewired = watts_strogatz_curve(
            curve.length, curve.degree, curve.fractions, **options
        )
        curves[", rewired"] = rewired
    report = Report(
        f"Small-world curve: n = {curve.length:,} tokens, {curve.degree} "
        f"neighbors, seed {arguments.seed}"
    )
    report.rows += _rows(curves)
    report.figures["small_world_curve"] = plotting.plot(curve, rewired)
    return report


def _rows(curves):
    columns = {"fraction of shortcuts": curves[""].fractions}
    for name, curve in curves.items():
        columns[f"path length{name}"] = curve.path_length
        columns[f"clustering{name}"] = curve.clustering
    return [
        dict(zip(columns, map(number, row))) for row in zip(*columns.values())
    ]
