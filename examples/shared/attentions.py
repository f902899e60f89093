"""The attentions that the examples compare, at equal numbers of visible keys.

Each has a name, the options of `keras_sa.hub.swap_attention` that come closest
to a number of visible keys per token, and a style in plots.

Imports no Keras before it is asked for options: command lines need the names
first.
"""

import dataclasses
import typing
from functools import partial

MOBA_TOP_K = 3
_RANDOM = ("stochastic", "small_world")


def _full(budget, length):
    return {"mode": "full"}


def _sliding_window(budget, length, **added):
    return _closest(budget, length, {"mode": "sliding_window"}) | added


def _half_window(budget, length):
    return _sliding_window(budget / 2, length)


def _stochastic(budget, length, neighborhood="window", **added):
    options = {"mode": "stochastic", "neighborhood": neighborhood}
    return _closest(budget, length, options) | added


def _small_world(
    budget, length, merge="gate", neighborhood="window", order=None, **added
):
    """Half of the keys are neighbours, the others from everywhere."""
    local = _sliding_window(budget / 2, length)["window_size"]
    options = {
        "mode": "small_world",
        "merge": merge,
        "local_window_size": local,
        "neighborhood": neighborhood,
    }
    if order is not None:
        options["order"] = order
    return _closest(budget, length, options) | added


def _block_routed(budget, length):
    options = {"mode": "block_routed", "top_k": MOBA_TOP_K}
    return _closest(budget, length, options, width="block_size")


def _closest(budget, length, options, width="window_size"):
    from examples.shared.visible_keys import visible_keys  # imports Keras

    # A causal mask hides about half of a random window: it is twice as wide.
    candidates = [{**options, width: w} for w in range(1, 2 * length + 1)]
    return min(
        candidates, key=lambda o: abs(visible_keys(length, **o) - budget)
    )


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention by name.

    Attributes:
        about: what it is, in words.
        options_at: of a budget and a length: options of the swap.
        style: colour, marker and line in plots. The colours are those of
            Okabe and Ito, which colour-blind readers tell apart; markers and
            lines differ as well, for print without colours.
        gated: whether there are gates, which have to be trained.
    """

    about: str
    options_at: typing.Callable
    style: tuple[str, str, str]
    gated: bool = False


ATTENTIONS = {
    "full": Attention("the model's own", _full, ("black", "*", "--")),
    "sliding_window": Attention(
        "the nearest keys", _sliding_window, ("#0072B2", "o", "-")
    ),
    "stochastic": Attention(
        "a window over a random order", _stochastic, ("#D55E00", "s", "--")
    ),
    "stochastic_block": Attention(
        "blocks of a random order",
        partial(_stochastic, neighborhood="block"),
        ("#D55E00", "x", ":"),
    ),
    "small_world": Attention(
        "half of the keys each, gated",
        _small_world,
        ("#CC79A7", "v", "-."),
        gated=True,
    ),
    "small_world_block": Attention(
        "small_world with blocks of a random order",
        partial(_small_world, neighborhood="block"),
        ("#CC79A7", "+", ":"),
        gated=True,
    ),
    "small_world_softmax": Attention(
        "both kinds of keys in one softmax, without gates",
        partial(_small_world, merge="softmax"),
        ("#009E73", "^", "-"),
    ),
    "block_routed": Attention(
        f"mixture of block attention, top {MOBA_TOP_K}",
        _block_routed,
        ("#E69F00", "D", ":"),
    ),
    # Controls: what is it that helps?
    "gated_window": Attention(
        "sliding_window with a gate",
        partial(_sliding_window, merge="gate"),
        ("#56B4E9", "p", "-"),
        gated=True,
    ),
    "half_window": Attention(
        "half of the nearest keys: the local path of small_world, alone",
        _half_window,
        ("#0072B2", ".", ":"),
    ),
    "two_windows": Attention(
        "small_world without the random order: two sliding windows, gated",
        partial(_small_world, order="identity"),
        ("#56B4E9", "h", "--"),
        gated=True,
    ),
    "stochastic_per_head": Attention(
        "stochastic with an order for each key/value head",
        partial(_stochastic, permute="head"),
        ("#D55E00", "1", "-."),
    ),
    "small_world_per_head": Attention(
        "small_world with an order for each key/value head",
        partial(_small_world, permute="head"),
        ("#CC79A7", "2", "--"),
        gated=True,
    ),
    "small_world_fixed": Attention(
        "small_world with one order for the whole training",
        partial(_small_world, resample="never"),
        ("#CC79A7", "3", "-"),
        gated=True,
    ),
}
TRAINING_FREE = (  # those that have no gates
    "full",
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world_softmax",
    "block_routed",
)


def options_at(name, budget, length):
    """Options of `hub.swap_attention` nearest to a budget.

    Args:
        name: of `ATTENTIONS`.
        budget: visible keys per token, in the mean.
        length: tokens of a sequence.
    """
    return ATTENTIONS[name].options_at(budget, length)


def is_random(options):
    """Whether the seed of the swap matters."""
    return options["mode"] in _RANDOM and options.get("order") != "identity"


def describe(options):
    """The windows in words."""
    if options["mode"] == "full":
        return ""
    if options["mode"] == "block_routed":
        return f"blocks of {options['block_size']}"
    if options["mode"] == "small_world":
        local, random = options["local_window_size"], options["window_size"]
        if options.get("order") == "identity":
            return f"{local} and {random // 2 + 1}"
        return f"{local} local, {random} random"
    return str(options["window_size"])
