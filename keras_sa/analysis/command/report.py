"""A table with its notes and figures: printed, and written into a folder."""

import dataclasses
import math

from keras_sa.analysis import plots

_SEEN = 1e-4  # an error that changes four digits


@dataclasses.dataclass
class Report:
    """What a command found.

    Args:
        title: a line above the table.
        rows: list of dicts from columns to cells, of strings; a row may lack
            columns.
        notes: sentences below the table.
        figures: dict from the name of a file, without its ending, to a
            `matplotlib.figure.Figure`.

    Example:

    >>> from keras_sa.analysis.command.report import Report
    >>> report = Report("Sizes")
    >>> report.rows += [{"size": "large"}, {"size": "small", "n": "1"}]
    >>> print(report.markdown())
    Sizes
    <BLANKLINE>
    | size | n |
    |---|---:|
    | large | |
    | small | 1 |
    """

    title: str
    rows: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    figures: dict = dataclasses.field(default_factory=dict)

    def markdown(self):
        """The title, the table and the notes; numbers stand to the right."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        sides = ["---", *["---:"] * (len(columns) - 1)]
        cells = [[row.get(name, "") for name in columns] for row in self.rows]
        table = [_line(columns), f"|{'|'.join(sides)}|", *map(_line, cells)]
        notes = [f"- {note}" for note in self.notes]
        parts = [self.title, "\n".join(table), "\n".join(notes)]
        return "\n\n".join(part for part in parts if part)

    def write(self, folder, ending):
        """Writes table.md and the figures; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "table.md"
        path.write_text(self.markdown() + "\n", encoding="utf-8")
        return [path] + [
            plots.save(figure, folder / f"{name}.{ending}")
            for name, figure in self.figures.items()
        ]


def _line(cells):
    cells = [cell.replace("|", "\\|") for cell in cells]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def number(value, digits=4):
    """A number in a cell, with some significant digits; nothing for none.

    Example:

    >>> from keras_sa.analysis.command.report import number
    >>> number(9999.9), number(0.000123456), number(None)
    ('10,000', '0.0001235', '')
    """
    if value is None:
        return ""
    if value != value:  # nan
        return "unknown"
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def with_error(value, error):
    """A number and its standard error, where that changes the digits.

    Example:

    >>> from keras_sa.analysis.command.report import with_error
    >>> with_error(4.3721, 0.0123), with_error(4.3721, 0.0001)
    ('4.372 ± 0.012', '4.372')
    """
    if not error > _SEEN * abs(value):  # nor if it is unknown
        return number(value)
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{places}f} ± {error:,.{places}f}"
