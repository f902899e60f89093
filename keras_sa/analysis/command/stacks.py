"""The stacks of layers that the command line names.

Letters: `n` tokens, `H` heads, `r` blocks per token.
"""

import numpy as np
from keras import ops

from keras_sa.ops import patterns
from keras_sa.patterns import permutation as permutations

PATTERNS = (
    "full",
    "sliding_window",
    "stochastic",
    "small_world",
    "block_routed",
)


def make_stack(name, arguments, length):
    """The layers of a pattern, each with its own seed.

    Args:
        name: one of `PATTERNS`.
        arguments: of the command line.
        length: tokens `n`.

    Returns:
        A list of patterns.
    """
    seeds = [arguments.seed] * arguments.layers
    if not arguments.same_order:  # as the layers of a swapped model
        words = permutations.split_seed(arguments.seed, arguments.layers)
        words = ops.convert_to_numpy(words)
        seeds = [int(word) for word in words.astype("int64") % 2**32]
    make = _MAKERS[name]
    return [make(arguments, length, seed) for seed in seeds]


def curve_degree(window_size):
    """Neighbours of a token in a window, in the graph without directions.

    Args:
        window_size: of a window that looks both ways.

    Returns:
        An even int.
    """
    return 2 * (window_size // 2)


def random_blocks(length, block_size, top_k, num_heads, causal, seed):
    """A random choice of blocks in the place of the one by their keys.

    Args:
        length: tokens `n`.
        block_size: tokens in a block.
        top_k: `r`: the token's own block and as many others as are missing,
            of all, or of those before it if causal.
        num_heads: `H`, each with its own choice.
        causal: whether tokens look back only.
        seed: int from 0.

    Returns:
        int32 `[n, H, r]`, -1 where there are not as many blocks.

    Example:

    >>> from keras_sa.analysis.command.stacks import random_blocks
    >>> blocks = random_blocks(3, 1, 2, num_heads=1, causal=True, seed=0)
    >>> blocks[:2].tolist()
    [[[0, -1]], [[1, 0]]]
    """
    generator = np.random.default_rng(seed)
    own = np.arange(length)[:, None] // block_size  # [n, 1]
    num_others = own if causal else np.full_like(own, own[-1])
    blocks = np.full((length, num_heads, top_k), -1)
    # R. W. Floyd's draw without replacement (Bentley, Programming Pearls,
    # CACM 30, 1987), of all tokens at once.
    for place in range(1, top_k):
        last = np.broadcast_to(num_others - top_k + place, (length, num_heads))
        drawn = generator.integers(0, np.maximum(last, 0), endpoint=True)
        is_taken = (blocks[..., 1:place] == drawn[..., None]).any(axis=-1)
        drawn = np.where(is_taken, last, drawn)
        blocks[..., place] = np.where(last >= 0, drawn, -1)
    if not causal:
        blocks[blocks >= own[..., None]] += 1  # none of them is the own
    blocks[..., 0] = own
    return blocks.astype("int32")


def _full(arguments, length, seed):
    return patterns.Full(causal=arguments.causal)


def _sliding_window(arguments, length, seed):
    return patterns.SlidingWindow(arguments.window, causal=arguments.causal)


def _stochastic(arguments, length, seed):
    return patterns.Stochastic(**_random_window(arguments, seed))


def _small_world(arguments, length, seed):
    return patterns.SmallWorld(
        **_random_window(arguments, seed),
        local_window_size=arguments.local_window,
    )


def _random_window(arguments, seed):
    return {
        "window_size": arguments.window,
        "seed": seed,
        "neighborhood": arguments.neighborhood or "window",
        "num_permutations": arguments.heads,
        "causal": arguments.causal,
    }


def _block_routed(arguments, length, seed):
    blocks = random_blocks(
        length,
        arguments.block_size,
        arguments.top_k,
        arguments.heads or 1,
        arguments.causal,
        seed,
    )
    return patterns.BlockRouted(
        arguments.block_size, blocks, causal=arguments.causal
    )


_MAKERS = dict(
    zip(
        PATTERNS,
        (_full, _sliding_window, _stochastic, _small_world, _block_routed),
    )
)
