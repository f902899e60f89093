"""The words of the command line, and whether they fit together."""

import argparse
import pathlib

from keras_sa import _validation
from keras_sa.analysis import plots
from keras_sa.patterns import parse_pattern

MEASURES = ("receptive_field", "small_world", "mixing")
_EXAMPLES = """\
examples:
  python -m keras_sa.analysis --length 130000 \\
      --pattern "Stochastic(26) | SlidingWindow(26)"
  python -m keras_sa.analysis --length 4096 --layers 8 --is-causal \\
      --pattern "SlidingWindow(64)" "Stochastic(127)"

The backend is that of Keras: KERAS_BACKEND.
"""


def parse(words=None):
    """The arguments of the command line; ends the process for wrong ones.

    Args:
        words: list of strings. Default: those of the process.

    Returns:
        An `argparse.Namespace`.

    Example:

    >>> from keras_sa.analysis.command.arguments import parse
    >>> parse("--pattern Full() SlidingWindow(3) --length 100".split()).pattern
    [Full(), SlidingWindow(3)]
    """
    parser = _make_parser()
    arguments = parser.parse_args(words)
    _check_patterns(parser, arguments)
    _check_measures(parser, arguments)
    return arguments


def _make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m keras_sa.analysis",
        description="Analyses the graph of an attention: a table, figures.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_pattern_options(parser.add_argument_group("patterns"))
    _add_measure_options(parser.add_argument_group("measures"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("attention_analysis"),
        metavar="DIR",
        help="for table.md and the figures (default: %(default)s)",
    )
    output.add_argument("--format", choices=plots.FORMATS, default="png")
    return parser


def _add_pattern_options(group):
    group.add_argument(
        "--pattern",
        nargs="+",
        required=True,
        type=_pattern,
        metavar="PATTERN",
        help="as Python writes it, a row of the table for each; of BlockRouted "
        "the blocks are chosen at random here, while a model chooses them by "
        "their keys",
    )
    group.add_argument(
        "--length", type=_positive, required=True, help="tokens n"
    )
    group.add_argument(
        "--layers",
        type=_positive,
        default=8,
        help="of the stack (default: %(default)s)",
    )
    group.add_argument(
        "--is-causal",
        action="store_true",
        help="a token attends to no later token",
    )
    group.add_argument(
        "--heads",
        type=_positive,
        help="key/value heads in a layer, for permutation_per='head', or "
        "choices of blocks (default: 1)",
    )
    group.add_argument(
        "--same-seed",
        action="store_true",
        help="all layers have the same permutations, which reaches no further",
    )


def _add_measure_options(group):
    group.add_argument(
        "--measures",
        nargs="+",
        choices=MEASURES,
        default=["receptive_field", "small_world"],
        help="default: receptive_field small_world",
    )
    group.add_argument(
        "--graph-layers",
        type=_positive,
        help="small_world: of as many layers together (default: 1)",
    )
    group.add_argument(
        "--samples",
        type=_positive,
        help="tokens from which coverage and paths are measured "
        "(default: all of a short text, else a random sample)",
    )
    group.add_argument(
        "--seed",
        type=_seed,
        default=0,
        help="of permutations and samples (default: %(default)s)",
    )


def _positive(word):
    """An int above 0; argparse names the option."""
    try:
        value = int(word)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"a positive integer is expected. Received: {word}"
        )
    return value


def _pattern(text):
    try:
        return parse_pattern(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seed(word):
    """An int of at most 32 bits, not negative: samples take no others."""
    try:
        value = int(word)
        _validation.check_seed(value)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(
            f"an integer from 0 to 2**32 - 1 is expected. Received: {word}"
        )
    return value


def _check_patterns(parser, arguments):
    if len(set(arguments.pattern)) < len(arguments.pattern):
        parser.error(
            "every pattern is expected once. "
            f"Received: {', '.join(map(repr, arguments.pattern))}"
        )


def _check_measures(parser, arguments):
    if arguments.graph_layers is None:
        arguments.graph_layers = 1
    elif "small_world" not in arguments.measures:
        parser.error("--graph-layers is expected with the measure small_world")
    if arguments.graph_layers > arguments.layers:
        parser.error(
            f"--graph-layers is expected to be at most --layers "
            f"{arguments.layers}. Received: {arguments.graph_layers}"
        )
    if (arguments.samples or 0) > arguments.length:
        parser.error(
            f"--samples is expected to be at most --length {arguments.length}. "
            f"Received: {arguments.samples}"
        )
