"""The attentions of the quickstart, at a given number of visible keys.

Each function takes a budget and the tokens of a sequence and returns the
options of `keras_sa.hub.swap_attention` that come closest to the budget.
"""

from visible_keys import visible_keys

MOBA_TOP_K = 3

SLIDING_WINDOW = "sliding window"
SMALL_WORLD = "small world, one softmax"
GATED = "small world, gated"


def sliding_window_at(budget, length):
    return _closest(budget, length, {"mode": "sliding_window"})


def stochastic_at(budget, length, neighborhood="window"):
    return _closest(
        budget, length, {"mode": "stochastic", "neighborhood": neighborhood}
    )


def small_world_at(budget, length, merge="softmax"):
    """Half of the keys are neighbours, the others from everywhere."""
    local = sliding_window_at(budget / 2, length)["window_size"]
    options = {
        "mode": "small_world",
        "merge": merge,
        "local_window_size": local,
    }
    return _closest(budget, length, options)


def gated_small_world_at(budget, length):
    return small_world_at(budget, length, merge="gate")


def block_routed_at(budget, length):
    options = {"mode": "block_routed", "top_k": MOBA_TOP_K}
    return _closest(budget, length, options, width="block_size")


def _closest(budget, length, options, width="window_size"):
    # A causal mask hides about half of a random window: it is twice as wide.
    candidates = [{**options, width: w} for w in range(1, 2 * length + 1)]
    return min(
        candidates, key=lambda o: abs(visible_keys(length, **o) - budget)
    )


ATTENTIONS = {
    SLIDING_WINDOW: sliding_window_at,
    "stochastic, window": stochastic_at,
    "stochastic, block": lambda *at: stochastic_at(*at, neighborhood="block"),
    SMALL_WORLD: small_world_at,
    f"MoBA, top {MOBA_TOP_K} blocks": block_routed_at,
}
FINE_TUNED = {SLIDING_WINDOW: sliding_window_at, GATED: gated_small_world_at}


def is_random(options):
    return options["mode"] in ("stochastic", "small_world")


def describe(options):
    """The windows in words."""
    if options["mode"] == "block_routed":
        return f"blocks of {options['block_size']}"
    if options["mode"] == "small_world":
        local, random = options["local_window_size"], options["window_size"]
        return f"{local} local, {random} random"
    return str(options["window_size"])
