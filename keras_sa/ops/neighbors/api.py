"""Attention of new tokens to some rows of a cache: a step of decoding.

Letters: `B` batch, `T` new tokens, `S` rows of the cache, `m` neighbours,
`H` query heads, `K` key/value heads, `D` head dim, `E` value head dim.
"""

import dataclasses
from typing import Any

import keras

from keras_sa.ops import _dispatch
from keras_sa.ops.neighbors import jax_triton
from keras_sa.ops.neighbors import portable
from keras_sa.ops.neighbors import torch_triton

# In order of preference, per Keras backend.
IMPLEMENTATIONS = {
    "jax": {"triton": jax_triton, "portable": portable},
    "torch": {"triton": torch_triton, "portable": portable},
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
    logit_soft_cap: Any
    sinks: Any
    alibi_slopes: Any


def neighbor_attention(
    query,
    key,
    value,
    neighbors,
    *,
    scale,
    logit_soft_cap=None,
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
        logit_soft_cap: optional `c` of `c * tanh(score / c)`.
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
        query, key, value, neighbors, scale, logit_soft_cap, sinks, alibi_slopes
    )
    table = IMPLEMENTATIONS[keras.config.backend()]
    chosen = _dispatch.choose(table, implementation, arguments)
    return chosen.forward(arguments)
