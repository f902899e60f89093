"""Attention of tokens to lists of keys: a step of decoding, or what nothing
faster knows.

Letters: `B` batch, `T` tokens that attend, `S` keys, `m` neighbors, `H` query
heads, `K` key/value heads, `D` head dim, `E` value head dim.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_sa import _validation
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
    """Checked arguments of an attention to neighbors.

    Attributes:
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        neighbors: int32 `[B or 1, K or 1, T, m]`, -1 for nobody.
        scale: factor on the scores.
        attn_logits_soft_cap: `c` of `c * tanh(score / c)`, or `None`.
        sinks: `[H]` or `None`.
        alibi_slopes: `[H]` or `None`: bias per position of the key.
        return_lse: whether the log-sum-exp is wanted.
        dropout: rate on the attention weights.
        dropout_seed: `SeedGenerator` or int for the dropout.
    """

    query: Any
    key: Any
    value: Any
    neighbors: Any
    scale: Any
    attn_logits_soft_cap: Any = None
    sinks: Any = None
    alibi_slopes: Any = None
    return_lse: bool = False
    dropout: float = 0.0
    dropout_seed: Any = None


def neighbor_attention(
    query,
    key,
    value,
    neighbors,
    *,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    alibi_slopes=None,
    return_lse=False,
    dropout=0.0,
    dropout_seed=None,
    implementation=None,
):
    """Attention of tokens to the keys on a list each; it reads no others.

    The tokens may be new ones that attend to some rows of a cache, as in a
    step of decoding, or all tokens of a sequence. Padding and causality are
    for the lists to leave out.

    Args:
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`; `K` divides `H`.
        value: `[B, S, K, E]`.
        neighbors: int32 `[T, m]`, `[K, T, m]` or `[B or 1, K or 1, T, m]`: the
            keys of each token, each once; -1 for nobody.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: optional `c`: scores become
            `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        alibi_slopes: optional `[H]`: bias per position of the key.
        return_lse: whether to return the log-sum-exp of the scores as well.
        dropout: rate of dropout on the attention weights.
        dropout_seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` for the best one, or a name ("triton",
            "portable"). A named one never falls back.

    Returns:
        `[B, T, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, T, H]`, float32 at least. A token with nobody on its list has
        output 0 and log-sum-exp -inf (with sinks: the sink).

    Raises:
        ValueError: if a shape or dtype is not as above, or if the named
            implementation can't do it.

    Example:

    >>> cache = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> query = keras.random.normal((2, 1, 8, 16), seed=1)
    >>> keras_sa.ops.neighbor_attention(
    ...     query, cache, cache, [[99, 98, 97, 0]]
    ... ).shape
    (2, 1, 8, 16)
    """
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    neighbors = _check_neighbors(neighbors, query, key)
    arguments = NeighborArguments(
        query,
        key,
        value,
        neighbors,
        scale=(
            query.shape[-1] ** -0.5
            if scale is None
            else _validation.check_number("scale", scale)
        ),
        attn_logits_soft_cap=_validation.check_number(
            "attn_logits_soft_cap", attn_logits_soft_cap
        ),
        sinks=_validation.check_sinks(sinks, query.shape[2]),
        alibi_slopes=alibi_slopes,
        return_lse=bool(return_lse),
        dropout=_validation.check_rate("dropout", dropout),
        dropout_seed=dropout_seed,
    )
    output, lse = attend(arguments, implementation)
    return (output, lse) if return_lse else output


def attend(arguments, implementation=None):
    """`neighbor_attention` of checked arguments: the output, and the
    log-sum-exp or `None`."""
    a = arguments
    if 0 in (*a.query.shape[:2], a.neighbors.shape[-1]):
        return _empty(arguments)
    table = IMPLEMENTATIONS[keras.config.backend()]
    chosen = dispatch.choose(table, implementation, arguments)
    return chosen.forward(arguments)


def _empty(arguments):
    a = arguments
    tensors = (a.query, a.key, a.value)
    shape = ops.shape(a.query)[:3]
    output = zeros_of(tensors, (*shape, a.value.shape[3]), a.value.dtype)
    lse = zeros_of(tensors, shape, "float32") - float("inf")
    return output, lse if a.return_lse else None


def _check_neighbors(neighbors, query, key):
    """int32 `[B or 1, K or 1, T, m]`."""
    neighbors = ops.convert_to_tensor(neighbors)
    shape = tuple(neighbors.shape)
    missing = 4 - len(shape)
    full = (1,) * missing + shape
    expected = (query.shape[0], key.shape[2], query.shape[1])
    fits = 2 <= len(shape) <= 4 and all(
        size in (None, wanted) or wanted is None or (size == 1 and axis < 2)
        for axis, (size, wanted) in enumerate(zip(full, expected))
    )
    dtype = keras.backend.standardize_dtype(neighbors.dtype)
    if not fits or "int" not in dtype:
        raise ValueError(
            "`neighbors` is expected to hold integers [T, m], [K, T, m] or "
            f"[B or 1, K or 1, T, m], here of B, K, T = {expected}. Received: "
            f"neighbors.shape={shape}, neighbors.dtype={dtype}"
        )
    for _ in range(missing):
        neighbors = neighbors[None]
    return ops.cast(neighbors, "int32")
