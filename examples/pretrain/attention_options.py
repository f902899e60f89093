"""What the tokens of each layer attend to while it is trained.

Imports no Keras before patterns are read: the command line needs this first.
"""

import itertools

from examples.shared import command_line

FULL = "Full()"


def add_arguments(parser):
    add = parser.add_argument_group("attention").add_argument
    add(
        "--pattern",
        nargs="+",
        default=[FULL],
        help="of all layers, as Python writes it, such as 'Stochastic(64) + "
        "SlidingWindow(64)'; several are interleaved along the layers. "
        f"Default: {FULL}, the model's own",
    )
    add(
        "--gate-bias",
        type=float,
        nargs="+",
        help="where the gates of a gated sum start, a number for each term; "
        "default: 0, the mean of the terms",
    )
    add(
        "--resample",
        choices=("training", "never"),
        default="training",
        help="when random patterns draw new permutations; default: training, "
        "at every step",
    )


def patterns_of_layers(arguments, num_layers):
    """The pattern of each layer."""
    patterns = command_line.read_patterns("--pattern", arguments.pattern)
    return list(itertools.islice(itertools.cycle(patterns), num_layers))


def num_gates(pattern):
    """How many gates a layer has: one for each term of a gated sum."""
    return len(pattern.terms) if "gates" in pattern.needs() else 0


def swap_options(arguments):
    """Keywords of `keras_sa.hub.swap_attention`; none for full attention."""
    patterns = command_line.read_patterns("--pattern", arguments.pattern)
    bias = arguments.gate_bias
    if all(repr(pattern) == FULL for pattern in patterns) and bias is None:
        return {}
    gates = max(map(num_gates, patterns))
    if bias is None and gates:
        bias = gates * [0.0]
    return {
        "pattern": patterns[0] if len(patterns) == 1 else patterns,
        "gate_bias": bias,
        "resample": arguments.resample,
    }


def as_words(pattern, resample):
    """The command line that asks for a pattern.

    Args:
        pattern: a `Pattern`.
        resample: as in `keras_sa.hub.swap_attention`, or `None`.
    """
    words = ["--pattern", repr(pattern)]
    return words if resample is None else [*words, "--resample", resample]


def describe(arguments):
    """The attention in words."""
    interleaved = ", ".join(arguments.pattern)
    if arguments.resample == "training":
        return interleaved
    return f"{interleaved}; resample={arguments.resample}"
