"""Analyses attention graphs from a command line.

    python -m keras_sa.analysis --pattern "Stochastic(26)" --length 4096

prints a table and writes it, with figures, into a folder; `--help` has the
rest.
"""

from keras_sa.analysis.command.arguments import parse
from keras_sa.analysis.command.pattern_report import pattern_report
from keras_sa.analysis.command.progress import Progress


def main(words=None):
    """Runs the command line.

    Args:
        words: list of strings. Default: those of the process.
    """
    arguments = parse(words)
    progress = Progress()
    report = pattern_report(arguments, progress)
    progress.close()
    print(report.markdown())
    for path in report.write(arguments.output, arguments.format):
        progress.say(f"wrote {path}")


if __name__ == "__main__":
    main()
