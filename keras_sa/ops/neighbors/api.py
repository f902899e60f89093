"""Attention of new tokens to some rows of a cache: a step of decoding.

Letters: `B` batch, `T` new tokens, `S` rows of the cache, `m` neighbours,
`H` query heads, `K` key/value heads, `D` head dim, `E` value head dim.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_sa.ops import dispatch
from keras_sa.ops.inputs import zeros_of
from keras_sa.ops.neighbors import portable
from keras_sa.ops.neighbors import triton

# In order of preference, per Keras backend.
IMPLEMENTATIONS = {
    "jax": {"triton": triton, "portable": portable},
    "torch": {"triton": triton, "portable": portable},
    "tensorflow": {"portable": portable},
}


@dataclasses.dataclass(frozen=True)
class NeighborArguments:
    """Arguments of an attention to neighbours; see `neighbor_attention`."""

    query: Any
    key: Any
    value: Any
    neighbors: Any
    scale: Any
    attn_logits_soft_cap: Any
    sinks: Any
    alibi_slopes: Any


def neighbor_attention(
    query,
    key,
    value,
    neighbors,
    *,
    scale,
    attn_logits_soft_cap=None,
    sinks=None,
    alibi_slopes=None,
    implementation=None,
):
    """Attention of new tokens to some rows of the cache; reads no others.

    Args:
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        neighbors: int32 `[T, m]`: rows of the cache; -1 for none.
        scale: factor on the scores.
        attn_logits_soft_cap: optional `c` of `c * tanh(score / c)`.
        sinks: optional `[H]`: extra logits in the denominator.
        alibi_slopes: optional `[H]`: bias per position of the key.
        implementation: `None` for the best one, or a name ("triton",
            "portable"). A named one never falls back.

    Returns:
        `[B, T, H, E]` in the dtype of `value`.

    Raises:
        ValueError: if the named implementation cannot do it.
    """
    arguments = NeighborArguments(
        query,
        key,
        value,
        neighbors,
        scale,
        attn_logits_soft_cap,
        sinks,
        alibi_slopes,
    )
    table = IMPLEMENTATIONS[keras.config.backend()]
    batch_size, num_new = query.shape[:2]
    if 0 in (batch_size, num_new, neighbors.shape[1]):
        dispatch.check_name(table, implementation)
        shape = (*ops.shape(query)[:3], value.shape[3])
        return zeros_of((query, key, value, sinks), shape, value.dtype)
    chosen = dispatch.choose(table, implementation, arguments)
    return chosen.forward(arguments)
