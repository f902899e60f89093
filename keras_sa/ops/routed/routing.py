"""The blocks that each query chooses, by its product with their mean keys.

Letters: as in `api.py`.
"""

import keras
import numpy as np
from keras import ops

from keras_sa import backend
from keras_sa.ops import ordering

# Affinities at a time, where they are not too many for that.
_AFFINITIES, _MOST_RUNS = 2**17, 16


def choose_blocks(query, key, slots, group, top_k, is_causal):
    """The routed blocks: ids `[N, n, G, r]` and which of them are choices.

    Args:
        query: `[N, n, G*D]`, in slot order.
        key: `[N, n, D]`, in slot order.
    """
    query, key = ops.stop_gradient(query), ops.stop_gradient(key)
    mean, is_empty = _mean_keys(key, slots)
    query = ops.reshape(query, slots.shape(group, key.shape[2]))
    parts = []
    for start, stop in _runs_of_blocks(slots, group):
        # What is later is not read.
        last = stop if is_causal else None
        parts.append(
            _choose_for_some(
                query[:, start * slots.block_size : stop * slots.block_size],
                mean[:, :last],
                None if is_empty is None else is_empty[:, :last],
                slots.own_block()[
                    start * slots.block_size : stop * slots.block_size
                ],
                top_k - 1,
                is_causal,
            )
        )
    chosen, is_choice = (
        ops.concatenate(x, axis=1) if len(x) > 1 else x[0] for x in zip(*parts)
    )
    if slots.padding_mask is not None:
        is_choice = ops.logical_and(
            is_choice, slots.is_real()[:, :, None, None]
        )
    return chosen, is_choice


def _runs_of_blocks(slots, group):
    """Where runs of blocks start and stop whose queries choose together."""
    num_blocks = slots.num_blocks
    if not isinstance(num_blocks, int):
        return [(0, num_blocks)]
    affinities = slots.length * slots.num_kv_heads * group * num_blocks
    num_runs = min(-(-affinities // _AFFINITIES), _MOST_RUNS)
    step = -(-num_blocks // num_runs)
    return [
        (start, min(start + step, num_blocks))
        for start in range(0, num_blocks, step)
    ]


def _choose_for_some(query, mean, is_empty, own, num_routed, is_causal):
    """The choice of some queries.

    Args:
        query: `[N, q, G, D]`.
        mean: the mean keys `[N, c, D]`.
        is_empty: boolean `[N, c]`, or `None`.
        own: the block of each query `[q]`.
    """
    affinity = ops.einsum("nigd,ncd->nigc", query, mean)
    block = ops.arange(ops.shape(mean)[1], dtype="int32")
    if is_causal:
        eligible = block[None, :] < own[:, None]
    else:
        eligible = block[None, :] != own[:, None]
    eligible = eligible[None, :, None, :]
    if is_empty is not None:
        is_full = ops.logical_not(is_empty)[:, None, None, :]
        eligible = ops.logical_and(eligible, is_full)
    lowest = float(np.finfo(keras.backend.standardize_dtype(mean.dtype)).min)
    # A sum is several times faster than a choice on torch.
    hidden = ops.where(eligible, 0.0, lowest / 2)
    affinity = affinity + ops.cast(hidden, affinity.dtype)
    num_blocks = mean.shape[1]
    if num_blocks is None or num_blocks < num_routed:
        affinity = ordering.pad_end(affinity, num_routed, lowest, axis=3)
    best, chosen = backend.top_k(affinity, num_routed)
    return ops.cast(chosen, "int32"), best > lowest / 4


def _mean_keys(key, slots):
    """The mean key of each block `[N, c, D]`, and boolean `[N, c]`: the blocks
    without a real token, or `None` where there are none."""
    keys = slots.blocks(key)  # [N, c, b, D]
    if slots.are_full:
        return ops.mean(keys, axis=2), None
    count = ops.sum(ops.cast(slots.blocks(slots.is_real()), key.dtype), axis=2)
    mean = ops.sum(keys, axis=2) / ops.maximum(count, 1)[..., None]
    return mean, count == 0
