"""See what the attention of a model does with text.

    python examples/studies/see_attention/run.py
    python examples/studies/see_attention/run.py --preset my_model --length 1024

Loads a KerasHub language model, runs it on held-out text, and tells for each
layer what its heads do: the entropy of their weights, how far they reach, how
much of the weight is on near tokens, and how open its gates are, if it has any.
A preset that `keras_sa.hub.save_to_preset` saved comes with its sparse
attention and its gates; any other one is taken as it is.

Writes `table.md` and, with matplotlib, `profile.png` and `gates.png`.
Without --preset the model is the small one of bytes of the quickstart.
Needs `pip install keras_sa[hub,analysis]`.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from examples.shared import command_line


def parse_arguments():
    parser = command_line.make_parser(__doc__)
    command_line.add_preset_arguments(parser)
    add = parser.add_argument
    add(
        "--window",
        type=int,
        default=32,
        help="the tokens that count as near, a token itself included",
    )
    add("--sequences", type=int, default=4, help="of held-out text")
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/see_attention"),
    )
    arguments = command_line.parse(parser)
    command_line.check_at_least_one(parser, arguments, "window", "sequences")
    return arguments


def main():
    arguments = parse_arguments()
    # Keras takes its backend when it is imported: not before.
    from examples.studies.see_attention import measuring

    measuring.main(arguments)


if __name__ == "__main__":
    main()
