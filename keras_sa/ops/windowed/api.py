"""The one signature behind sliding-window and stochastic attention.

Both are attention over a window of *slots*: the sliding window's slots are the
positions themselves, the stochastic window's are a permutation of them.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_sa import _validation
from keras_sa.ops import _dispatch
from keras_sa.ops import patterns
from keras_sa.ops.windowed import jax_looped
from keras_sa.ops.windowed import jax_triton
from keras_sa.ops.windowed import native_block
from keras_sa.ops.windowed import portable
from keras_sa.ops.windowed import tensorflow_xla
from keras_sa.ops.windowed import torch_flex
from keras_sa.ops.windowed import torch_triton
from keras_sa.ops.windowed import torch_windows

# In order of preference, per Keras backend.
IMPLEMENTATIONS = {
    "jax": {
        "native_block": native_block,
        "triton": jax_triton,
        "looped": jax_looped,
        "portable": portable,
    },
    "torch": {
        "native_block": native_block,
        "triton": torch_triton,
        "flex": torch_flex,
        "sdpa": torch_windows,
        "portable": portable,
    },
    "tensorflow": {
        "native_block": native_block,
        "xla": tensorflow_xla,
        "portable": portable,
    },
}


@dataclasses.dataclass(frozen=True)
class WindowedArguments:
    """Checked arguments of a windowed attention.

    Attributes:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`.
        value: `[B, n, K, E]`.
        permutation: int32 `[n]`, `[B, n]` or `[B, K, n]` with padding in the
            last slots, or `None` for the identity.
        left: slots that a token sees before its own (`"window"`).
        right: slots that a token sees after its own (`"window"`).
        window_size: `w`; the number of slots in a block (`"block"`).
        neighborhood: `"window"` or `"block"`.
        causal: whether a token sees no later original position.
        padding_mask: boolean `[B, n]` or `None`.
        attention_mask: boolean `[B or 1, n, n]` or `None`.
        exclude_local: `(left, right)` distances of pairs to hide, or `None`.
        scale: factor on the scores.
        logit_soft_cap: `c` of `c * tanh(score / c)`, or `None`.
        sinks: `[H]` or `None`.
        return_lse: whether the log-sum-exp is wanted.
        dropout: rate on the attention weights.
        seed: `SeedGenerator` or int for the dropout.
    """

    query: Any
    key: Any
    value: Any
    permutation: Any
    left: int
    right: int
    window_size: int
    neighborhood: str
    causal: bool
    padding_mask: Any
    attention_mask: Any
    exclude_local: Any
    scale: Any
    logit_soft_cap: Any
    sinks: Any
    return_lse: bool
    dropout: float
    seed: Any


def windowed_attention(
    query,
    key,
    value,
    permutation,
    *,
    reach,
    window_size,
    neighborhood,
    causal,
    padding_mask=None,
    attention_mask=None,
    exclude_local=None,
    scale=None,
    logit_soft_cap=None,
    sinks=None,
    return_lse=False,
    dropout=0.0,
    seed=None,
    implementation=None,
):
    """Checks what is common to all windows, chooses, and runs.

    Args:
        reach: `(left, right)` slots, for `neighborhood="window"`.
        permutation: checked, padding last, or `None` for the identity.
        exclude_local: `(left, right)` distances, or `None`.
        Others: as in `WindowedArguments`.

    Returns:
        `[B, n, H, E]`, with `return_lse` also `[B, n, H]`.
    """
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    _validation.check_qkv(query, key, value)
    batch_size, length, num_heads, head_dim = query.shape
    if neighborhood == "block" and isinstance(length, int):
        # One block holds everything. No `min`, as in `portable.choose_chunks`.
        window_size = window_size if window_size < length else length
    arguments = WindowedArguments(
        query=query,
        key=key,
        value=value,
        permutation=permutation,
        left=reach[0],
        right=reach[1],
        window_size=window_size,
        neighborhood=_validation.check_one_of(
            "neighborhood", neighborhood, patterns.NEIGHBORHOODS
        ),
        causal=bool(causal),
        padding_mask=_validation.check_padding_mask(
            padding_mask, batch_size, length
        ),
        attention_mask=_validation.check_attention_mask(
            attention_mask, batch_size, length
        ),
        exclude_local=exclude_local,
        scale=(
            head_dim**-0.5
            if scale is None
            else _validation.check_number("scale", scale)
        ),
        logit_soft_cap=_validation.check_number(
            "logit_soft_cap", logit_soft_cap
        ),
        sinks=_validation.check_sinks(sinks, num_heads),
        return_lse=return_lse,
        dropout=_validation.check_rate("dropout", dropout),
        seed=seed,
    )
    table = IMPLEMENTATIONS[keras.config.backend()]
    chosen = _dispatch.choose(table, implementation, arguments)
    return chosen.forward(arguments)
