"""Who the neighbours of new tokens are, in a cache.

Letters: `T` new tokens, `S` rows of the cache, `m` neighbours.
"""

from keras_sa.ops import patterns


def local_neighbors(positions, length, window_size):
    """int32 `[T, m]`: what each new token sees; -1 where there is none."""
    return patterns.sliding_window_neighbors(
        length, min(window_size, length), causal=True, positions=positions
    )


def stochastic_neighbors(
    positions, order, window_size, neighborhood, exclude_local=None
):
    """int32 `[T, m]`: what each new token sees; -1 where there is none.

    Args:
        positions: int32 `[T]`.
        order: the permutation over the cache and its inverse, int32 `[S]`.
    """
    permutation, slot_of = order
    return patterns.stochastic_neighbors(
        permutation,
        window_size,
        neighborhood,
        causal=True,
        exclude_local=exclude_local,
        positions=positions,
        slot_of=slot_of,
    )
