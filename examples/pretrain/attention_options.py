"""Which attention each layer is trained with, and how wide it is.

Imports no Keras: the command line needs this first.
"""

MODES = (
    "full",
    "sliding_window",
    "stochastic",
    "small_world",
    "block_routed",
)
_RANDOM = ("stochastic", "small_world")
# The arguments of the command line that modes have, and their names as options
# of `keras_sa.hub.swap_attention`.
_OPTIONS = {
    "window": ("window_size", ("sliding_window", *_RANDOM)),
    "local_window": ("local_window_size", ("small_world",)),
    "neighborhood": ("neighborhood", _RANDOM),
    "merge": ("merge", ("small_world", "sliding_window")),
    "permute": ("permute", _RANDOM),
    "order": ("order", _RANDOM),
    "resample": ("resample", _RANDOM),
    "block_size": ("block_size", ("block_routed",)),
    "top_k": ("top_k", ("block_routed",)),
}


def add_arguments(parser):
    group = parser.add_argument_group("attention")
    add = group.add_argument
    add(
        "--attention",
        nargs="+",
        default=["full"],
        choices=MODES,
        help="of all layers; several take turns along the layers. Default: "
        "full, the model's own",
    )
    add("--window", type=int, help="tokens of a window; default: by --size")
    add(
        "--local-window",
        type=int,
        help="tokens of the sliding window of small_world; default: --window",
    )
    add(
        "--neighborhood",
        choices=("window", "block"),
        help="of stochastic and small_world; default: window",
    )
    add(
        "--merge",
        choices=("gate", "softmax"),
        help="of small_world; default: gate. A gate that is asked for is given "
        "to sliding_window as well",
    )
    add(
        "--block-size",
        type=int,
        help="tokens of a block of block_routed; default: --top-k blocks are "
        "a window of --size",
    )
    add("--top-k", type=int, help="blocks of block_routed; default: 3")
    add(
        "--gate-bias",
        type=float,
        nargs=2,
        metavar=("STOCHASTIC", "LOCAL"),
        help="where the gates start; default: 0 0, the mean of both paths",
    )
    add(
        "--permute",
        choices=("layer", "head"),
        help="whether stochastic and small_world draw a permutation for a "
        "layer or for each of its key/value heads; default: layer",
    )
    add(
        "--order",
        choices=("random", "identity"),
        help="of the tokens in stochastic and small_world; identity: as they "
        "are, to tell what the random order adds. Default: random",
    )
    add(
        "--resample",
        choices=("training", "never"),
        help="when stochastic and small_world draw new permutations; default: "
        "training, at every step",
    )


def fill_in_defaults(arguments, window_size):
    """Options that the attention has and that were not given.

    Args:
        arguments: of the command line; changed in place.
        window_size: of the size.
    """

    def fill_in(name, value):
        is_option = name not in _OPTIONS or _has_any(arguments, name)
        if is_option and getattr(arguments, name) is None:
            setattr(arguments, name, value)

    fill_in("window", window_size)
    fill_in("local_window", arguments.window)
    fill_in("neighborhood", "window")
    fill_in("permute", "layer")
    fill_in("order", "random")
    fill_in("resample", "training")
    fill_in("top_k", 3)
    fill_in("block_size", -(-window_size // (arguments.top_k or 1)))
    if _has_gates(arguments):
        fill_in("gate_bias", [0.0, 0.0])


def why_not(arguments):
    """What is wrong with the arguments in a sentence, or `None`."""
    for name, (_, modes) in _OPTIONS.items():
        value = getattr(arguments, name)
        if value is not None and not _has_any(arguments, name):
            return _expects(name, f"--attention {' or '.join(modes)}", value)
    if (
        arguments.merge == "softmax"
        and "small_world" not in arguments.attention
    ):
        return _expects("merge", "--attention small_world", "softmax")
    if arguments.gate_bias is not None and not _has_gates(arguments):
        expected = "--attention small_world --merge gate"
        return _expects("gate_bias", expected, arguments.gate_bias)
    return None


def _has_any(arguments, name):
    _, modes = _OPTIONS[name]
    return any(mode in modes for mode in arguments.attention)


def _has_gates(arguments):
    return any(gated_paths(arguments, mode) for mode in arguments.attention)


def _expects(name, expected, value):
    option = name.replace("_", "-")
    return f"--{option} expects {expected}. Received: --{option} {value}"


def gated_paths(arguments, mode):
    """How many paths of a layer have a gate."""
    if options_of(arguments, mode).get("merge") != "gate":
        return 0
    return 2 if mode == "small_world" else 1


def swap_options(arguments):
    """Keywords of `keras_sa.hub.swap_attention`; none for full attention."""
    if set(arguments.attention) == {"full"}:
        return {}
    turns = [
        {"mode": mode, **options_of(arguments, mode)}
        for mode in arguments.attention
    ]
    options = turns[0] if len(turns) == 1 else {"mode": turns}
    if arguments.gate_bias is not None:
        options["gate_bias"] = tuple(arguments.gate_bias)
    return options


def modes_of_layers(arguments, num_layers):
    """The mode of each layer."""
    turns = arguments.attention
    return [turns[index % len(turns)] for index in range(num_layers)]


def options_of(arguments, mode):
    """The options that one mode has."""
    options = {
        option: getattr(arguments, name)
        for name, (option, modes) in _OPTIONS.items()
        if mode in modes and getattr(arguments, name) is not None
    }
    if mode == "small_world":
        return {"merge": "gate", **options}
    if options.get("merge") == "softmax":  # a window has no other to join
        del options["merge"]
    return options


def as_words(options):
    """The command line that asks for some options of a swap.

    Args:
        options: of `keras_sa.hub.swap_attention`, with one `mode`.
    """
    words = ["--attention", options["mode"]]
    for name, (option, _) in _OPTIONS.items():
        if option in options:
            words += [f"--{name.replace('_', '-')}", str(options[option])]
    return words


def describe(arguments):
    """The attention in words."""
    options = [
        f"{option}={value}"
        for mode in dict.fromkeys(arguments.attention)
        for option, value in options_of(arguments, mode).items()
    ]
    return ", ".join([" + ".join(arguments.attention), *dict.fromkeys(options)])
