"""How many keys a token sees under a swap."""

from keras_sa.ops import patterns


def visible_keys(length, mode, **options):
    """The mean over the tokens of a causal sequence.

    Args:
        length: tokens of the sequence.
        mode: of `keras_sa.hub.swap_attention`.
        **options: its options that say how wide the attention is.
    """
    if mode == "small_world":
        return _small_world(length, **options)
    if _is_in_order(options):
        # A window of the order of the tokens is half hidden by causality.
        visible = options["window_size"] // 2 + 1
        return visible_keys(length, "sliding_window", window_size=visible)
    return patterns.visible_keys_per_token(
        length,
        options.get("block_size") or options.get("window_size"),
        mode,
        options.get("neighborhood", "window"),
        causal=True,
        top_k=options.get("top_k", 1),
    )


def _small_world(
    length,
    window_size,
    local_window_size=None,
    neighborhood="window",
    merge="gate",
    order="random",
    **_,
):
    stochastic = visible_keys(
        length,
        "stochastic",
        window_size=window_size,
        neighborhood=neighborhood,
        order=order,
    )
    local = visible_keys(
        length, "sliding_window", window_size=local_window_size or window_size
    )
    if merge == "gate":
        # Two softmaxes: a key that both paths see counts twice.
        return stochastic + local
    if _is_in_order({"order": order, "neighborhood": neighborhood}):
        return max(stochastic, local)  # one window holds the other
    return patterns.union_size(length, stochastic, local, causal=True)


def _is_in_order(options):
    """Whether the stochastic window is a sliding one."""
    is_window = options.get("neighborhood", "window") == "window"
    return is_window and options.get("order") == "identity"
