"""The stacks of layers that the command line names.

Letters: `n` tokens, `H` heads, `r` blocks per token.
"""

import numpy as np

from keras_sa.analysis.sources import seeds as layer_seeds


def make_stack(pattern, arguments, length):
    """The layers of a pattern, each with its own seed.

    Args:
        pattern: a `Pattern`.
        arguments: of the command line.
        length: tokens `n`.

    Returns:
        A list of `BoundPattern`.
    """
    seeds = [arguments.seed] * arguments.layers
    if not arguments.same_seed:  # as the layers of a swapped model
        seeds = layer_seeds(arguments.seed, arguments.layers)
    return [
        pattern.bind(
            is_causal=arguments.is_causal,
            seed=seed,
            num_key_value_heads=arguments.heads or 1,
            routes=_routes(pattern, arguments, length, seed),
        )
        for seed in seeds
    ]


def _routes(pattern, arguments, length, seed):
    """Blocks for the part of a pattern that leaves them to the tokens."""
    routed = [x for x in pattern.leaves() if "routes" in x.needs()]
    if not routed:
        return None
    return random_blocks(
        length,
        routed[0].block_size,
        routed[0].top_k,
        arguments.heads or 1,
        arguments.is_causal,
        seed,
    )


def random_blocks(length, block_size, top_k, num_heads, is_causal, seed):
    """A random choice of blocks in the place of the one by their keys.

    Args:
        length: tokens `n`.
        block_size: tokens in a block.
        top_k: `r`: the token's own block and as many others as are missing,
            of all, or of those before it if causal.
        num_heads: `H`, each with its own choice.
        is_causal: whether a token attends to no later token.
        seed: int from 0.

    Returns:
        int32 `[n, H, r]`, -1 where there are not as many blocks.

    Example:

    >>> from keras_sa.analysis.command.stacks import random_blocks
    >>> blocks = random_blocks(3, 1, 2, num_heads=1, is_causal=True, seed=0)
    >>> blocks[:2].tolist()
    [[[0, -1]], [[1, 0]]]
    """
    generator = np.random.default_rng(seed)
    own = np.arange(length)[:, None] // block_size  # [n, 1]
    num_others = own if is_causal else np.full_like(own, own[-1])
    blocks = np.full((length, num_heads, top_k), -1)
    # R. W. Floyd's draw without replacement (Bentley, Programming Pearls,
    # CACM 30, 1987), of all tokens at once.
    for place in range(1, top_k):
        last = np.broadcast_to(num_others - top_k + place, (length, num_heads))
        drawn = generator.integers(0, np.maximum(last, 0), endpoint=True)
        is_taken = (blocks[..., 1:place] == drawn[..., None]).any(axis=-1)
        drawn = np.where(is_taken, last, drawn)
        blocks[..., place] = np.where(last >= 0, drawn, -1)
    if not is_causal:
        blocks[blocks >= own[..., None]] += 1  # none of them is the own
    blocks[..., 0] = own
    return blocks.astype("int32")
