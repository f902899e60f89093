"""The small-world measures of a graph as cells of a table."""

from keras_sa.analysis.command.report import number
from keras_sa.analysis.command.report import with_error


def small_world_cells(measures):
    """Dict from columns to cells of `SmallWorldMeasures`.

    Args:
        measures: `SmallWorldMeasures`.

    Returns:
        dict; `connected` is there only if some pairs have no path.
    """
    cells = {
        "degree": number(measures.degree),
        "clustering": with_error(
            measures.clustering, measures.clustering_error
        ),
        "path length": with_error(
            measures.path_length, measures.path_length_error
        ),
        "diameter": number(measures.diameter),
        "sigma": number(measures.sigma),
        "omega": number(measures.omega),
    }
    if measures.connected < 1:
        cells["connected"] = f"{100 * measures.connected:.3g} %"
    return cells


def small_world_note(measures):
    """What the columns mean.

    Args:
        measures: list of `SmallWorldMeasures`, those of the table.
    """
    note = (
        "sigma: transitivity by path length, each over that of a random graph: "
        "far above 1 in a small world; omega: near 0 in a small world, towards "
        "-1 in a lattice and 1 in a random graph."
    )
    if any(x.path_length_error for x in measures):
        note += (
            " Of a sample of nodes: path length ± standard error where it can "
            "be seen in the digits; the diameter is the longest that was seen."
        )
    if any(x.connected < 1 for x in measures):
        note += " connected: pairs of nodes with a path; the others have none."
    return note
