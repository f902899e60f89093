"""The words of the command line, and whether they fit together."""

import argparse
import pathlib

from keras_sa import _validation
from keras_sa.analysis import plots
from keras_sa.analysis.connectome import FLY
from keras_sa.patterns import parse_pattern

MEASURES = ("receptive_field", "small_world", "small_world_curve", "mixing")
PRESETS = ("fly",)
_DEFAULTS = {
    "layers": 8,
    "graph_layers": 1,
    "measures": ["receptive_field", "small_world"],
}
# Which options are for what is analysed; the others are for all.
_OPTIONS_OF = {
    "pattern": (
        "length",
        "layers",
        "is_causal",
        "heads",
        "same_seed",
        "measures",
        "graph_layers",
        "degree",
        "samples",
    ),
    "preset": ("length", "samples"),
    "edge_list": (
        "source_column",
        "target_column",
        "weight_column",
        "min_weight",
        "samples",
    ),
}
_EXAMPLES = """\
examples:
  python -m keras_sa.analysis --length 130000 \\
      --pattern "Stochastic(26) | SlidingWindow(26)"
  python -m keras_sa.analysis --length 4096 --layers 8 --is-causal \\
      --pattern "SlidingWindow(64)" "Stochastic(127)"
  python -m keras_sa.analysis --preset fly
  python -m keras_sa.analysis --edge-list edges.csv

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
    work = _check_work(parser, arguments)
    if work == "pattern":
        _check_patterns(parser, arguments)
        _check_measures(parser, arguments)
    elif (
        work == "preset" and (arguments.length or FLY.degree + 1) <= FLY.degree
    ):
        parser.error(
            f"--length is expected to be above {FLY.degree:.0f}, the number "
            f"of neighbors. Received: {arguments.length}"
        )
    return arguments


def option(name):
    """The word of the command line for an argument."""
    return "--" + name.replace("_", "-")


def _make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m keras_sa.analysis",
        description="Analyses the graph of an attention: a table, figures.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    work = parser.add_argument_group("what is analysed, one of")
    work.add_argument(
        "--pattern",
        nargs="+",
        type=_pattern,
        metavar="PATTERN",
        help="as Python writes it, a row of the table for each; of BlockRouted "
        "the blocks are chosen at random here, while a model chooses them by "
        "their keys",
    )
    work.add_argument(
        "--preset",
        choices=PRESETS,
        help="attentions as sparse as the brain of a fly, beside it",
    )
    work.add_argument(
        "--edge-list",
        type=pathlib.Path,
        metavar="FILE",
        help="a graph that was measured, such as a connectome",
    )
    _add_pattern_options(parser.add_argument_group("patterns"))
    _add_measure_options(parser.add_argument_group("measures"))
    _add_file_options(parser.add_argument_group("edge lists"))
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
    group.add_argument("--length", type=_positive, help="tokens n")
    group.add_argument(
        "--layers", type=_positive, help="of the stack (default: 8)"
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
        help="default: receptive_field small_world",
    )
    group.add_argument(
        "--graph-layers",
        type=_positive,
        help="small_world: of as many layers together (default: 1)",
    )
    group.add_argument(
        "--degree",
        type=_even,
        help="small_world_curve: neighbors of a token, even and from 4",
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


def _add_file_options(group):
    group.add_argument(
        "--source-column",
        metavar="NAME",
        help="of the nodes where edges start (default: the first column)",
    )
    group.add_argument(
        "--target-column",
        metavar="NAME",
        help="of the nodes where they lead (default: the second column)",
    )
    group.add_argument(
        "--weight-column",
        metavar="NAME",
        help="of numbers, such as counts of synapses",
    )
    group.add_argument(
        "--min-weight",
        type=float,
        metavar="NUMBER",
        help="leaves edges of less weight out",
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


def _even(word):
    """An even int from 4: a ring of 2 neighbors has no clustering."""
    value = _positive(word)
    if value % 2 or value < 4:
        raise argparse.ArgumentTypeError(
            f"an even integer from 4 is expected. Received: {word}"
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


def _check_work(parser, arguments):
    """Returns which of the three it is: the name of its argument."""
    chosen = [name for name in _OPTIONS_OF if _is_given(arguments, name)]
    if len(chosen) != 1:
        received = " and ".join(option(name) for name in chosen)
        parser.error(
            "one of --pattern, --preset and --edge-list is expected. "
            f"Received: {received or 'none'}"
        )
    work = chosen[0]
    _check_options(parser, arguments, work)
    return work


def _check_options(parser, arguments, work):
    for options in _OPTIONS_OF.values():
        for name in options:
            if name not in _OPTIONS_OF[work] and _is_given(arguments, name):
                parser.error(
                    f"{option(name)} is not expected with {option(work)}"
                )


def _is_given(arguments, name):
    value = getattr(arguments, name)
    return value is not None and value is not False


def _check_patterns(parser, arguments):
    if arguments.length is None:
        parser.error("--length is expected with --pattern")
    if len(set(arguments.pattern)) < len(arguments.pattern):
        parser.error(
            "every pattern is expected once. "
            f"Received: {', '.join(map(repr, arguments.pattern))}"
        )


def _check_measures(parser, arguments):
    """What is measured needs; fills in what was not said."""
    is_given = _is_given(arguments, "graph_layers")
    for name, default in _DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    if is_given and "small_world" not in arguments.measures:
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
    has_curve = "small_world_curve" in arguments.measures
    if has_curve != (arguments.degree is not None):
        parser.error(
            "--degree is expected with the measure small_world_curve, and "
            f"only with it. Received: --degree {arguments.degree}"
        )
    if has_curve and arguments.degree >= arguments.length:
        parser.error(
            f"--degree is expected to be less than --length "
            f"{arguments.length}. Received: {arguments.degree}"
        )
