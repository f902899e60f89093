"""What the study of the estimate tells: a table."""

import sys

from examples.shared import command_line
from examples.studies.estimation.measuring import estimator_error
from keras_sa.analysis.command.report import Report
from keras_sa.analysis.command.report import number
from keras_sa.analysis.command.report import with_error


def main(arguments):
    try:
        found = estimator_error(
            arguments.length,
            arguments.window_sizes,
            arguments.neighborhood,
            arguments.is_causal,
            num_draws=arguments.draws,
            num_values=arguments.values,
            seed=arguments.seed,
        )
    except ValueError as error:
        sys.exit(f"error: {error}")
    kind = "causal" if arguments.is_causal else "bidirectional"
    report = Report(
        f"Stochastic for full attention, {arguments.neighborhood}, {kind}: "
        f"n = {arguments.length:,} tokens, seed {arguments.seed}"
    )
    report.rows += [_row(found, place) for place in range(len(found.variance))]
    print(report.markdown())
    command_line.announce_end(report.write(arguments.output, "png"))


def _row(found, place):
    row = {"w": str(found.window_sizes[place])}
    for name in ("squared_bias", "variance"):
        column = name.replace("_", " ")
        row[column] = with_error(
            getattr(found, name)[place], getattr(found, f"{name}_error")[place]
        )
        row[f"{column}, theory"] = number(
            getattr(found, f"expected_{name}")[place]
        )
    return row
