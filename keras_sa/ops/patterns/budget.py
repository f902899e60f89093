"""How many keys a token sees in the mean: the budget to compare at."""

from keras_sa.ops.patterns.masks import window_reach


def visible_keys_per_token(
    length,
    window_size,
    pattern="sliding_window",
    neighborhood="window",
    causal=False,
    top_k=1,
):
    """The mean number of keys a token sees: the budget to compare at.

    Exact for the sliding window. For stochastic attention the mean over
    permutations: a pair of tokens that share a window is seen from both ends,
    or under a causal mask from the later end only. For block-routed attention
    exact under a causal mask, else the most there can be.

    Args:
        length: `n`.
        window_size: `w`, or the tokens in a block for `"block_routed"`.
        pattern: `"full"`, `"sliding_window"`, `"stochastic"` or
            `"block_routed"`.
        neighborhood: `"window"` or `"block"`, for `"stochastic"`.
        causal: whether tokens look back only.
        top_k: blocks that a token reads, for `"block_routed"`.

    Returns:
        A float between 1 and `n`.

    Example:

    >>> from keras_sa.ops import patterns
    >>> patterns.visible_keys_per_token(4096, 129, "stochastic", causal=True)
    64.4921875
    """
    if pattern == "full":
        return (length + 1) / 2 if causal else float(length)
    if pattern == "block_routed":
        return _routed_keys(length, window_size, top_k, causal)
    if pattern == "stochastic" and neighborhood == "block":
        full, rest = divmod(length, window_size)
        others = full * window_size * (window_size - 1) + rest * (rest - 1)
    else:
        left, right = window_reach(
            window_size, causal and pattern == "sliding_window"
        )
        others = _pairs(length, left) + _pairs(length, right)
    if causal and pattern == "stochastic":
        others = others / 2
    return others / length + 1


def union_size(length, stochastic, local, causal=False):
    """Mean visible keys of a stochastic and a sliding window together.

    Args:
        length: `n`.
        stochastic: mean visible keys of the stochastic window alone.
        local: mean visible keys of the sliding window alone.
        causal: whether tokens look back only.
    """
    everything = visible_keys_per_token(length, length, "full", causal=causal)
    if everything == 1:
        return 1.0
    share = (stochastic - 1) / (everything - 1)  # of all pairs, at random
    return local + share * (everything - local)


def _routed_keys(length, block_size, top_k, causal):
    if not causal:
        return float(min(length, top_k * block_size))
    total = 0
    for start in range(0, length, block_size):
        own = min(block_size, length - start)
        past_blocks = min(top_k - 1, start // block_size)
        total += own * (own + 1) / 2 + own * past_blocks * block_size
    return total / length


def _pairs(length, reach):
    """Ordered pairs of positions at distance 1 .. reach, one direction."""
    reach = min(reach, length - 1)
    return reach * length - reach * (reach + 1) // 2
