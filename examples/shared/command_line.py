"""What the command lines of the examples share.

Imports no Keras: it chooses its backend when it is imported, so the command
line comes first.
"""

import argparse
import os
import pathlib
import time

from examples.shared.attentions import ATTENTIONS

_START = time.monotonic()


def make_backend_parser(description):
    """A parser with the argument that every example has."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--backend",
        default=os.environ.get("KERAS_BACKEND", "jax"),
        choices=("jax", "torch", "tensorflow"),
        help="default: KERAS_BACKEND, else jax",
    )
    return parser


def make_parser(description):
    """A parser with the arguments of examples that read a text."""
    parser = make_backend_parser(description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--text",
        type=pathlib.Path,
        help="a folder of text files; default: Python's standard library",
    )
    parser.add_argument(
        "--length", type=int, default=512, help="tokens of a sequence"
    )
    return parser


def add_preset_arguments(parser):
    """The arguments of examples that load a model."""
    parser.add_argument(
        "--preset",
        help="smollm2 (downloaded once), or what keras_hub.models.CausalLM."
        "from_preset takes: a name, hf://..., or a folder; default: the small "
        "model of bytes in quickstart/tiny_model",
    )
    parser.add_argument(
        "--dtype", help="of a model that is loaded, such as bfloat16"
    )


def add_model_arguments(parser):
    """The arguments of examples that load a model and swap its attention."""
    add_preset_arguments(parser)
    parser.add_argument(
        "--layers",
        default="global",
        choices=("global", "all"),
        help="which to swap: those without a window of their own, or all",
    )


def add_comparison_arguments(parser, attentions, visible_keys):
    """The arguments of examples that train a model through each attention.

    Args:
        parser: of the command line.
        attentions: the default: names of attentions.py.
        visible_keys: the default.
    """
    add = parser.add_argument
    add(
        "--attentions",
        nargs="+",
        default=attentions,
        choices=ATTENTIONS,
        help="by the names of attentions.py; default: " + " ".join(attentions),
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add(
        "--visible-keys",
        type=int,
        default=visible_keys,
        help="per token, in the mean; all but full attention",
    )


def read_patterns(option, texts):
    """What the texts of an option say, as patterns; imports Keras."""
    from keras_sa.patterns import parse_pattern

    try:
        return [parse_pattern(text) for text in texts]
    except ValueError as error:
        raise SystemExit(f"{option}: {error}") from error


def check_at_least_one(parser, arguments, *names):
    """Ends with an error if one of these arguments is lower."""
    for name in names:
        if getattr(arguments, name) < 1:
            option = name.replace("_", "-")
            parser.error(
                f"--{option} is expected to be at least 1. "
                f"Received: --{option} {getattr(arguments, name)}"
            )


def parse(parser):
    """The arguments; Keras may be imported afterwards."""
    return _choose_backend(parser.parse_args())


def parse_known(parser):
    """The same, and the words that the parser does not know."""
    arguments, others = parser.parse_known_args()
    return _choose_backend(arguments), others


def _choose_backend(arguments):
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return arguments


def elapsed():
    """The time since the start as a string."""
    minutes, seconds = divmod(int(time.monotonic() - _START), 60)
    return f"{minutes}:{seconds:02d}"


def announce(stage, stages, what):
    print(f"[{stage}/{stages}  {elapsed()}] {what}", flush=True)


def announce_end(paths):
    print(f"Done in {elapsed()} minutes. Written:")
    for path in paths:
        print(f"  {path}")
