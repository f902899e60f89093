"""The one signature behind sliding-window and stochastic attention.

Both are attention over a window of *slots*: the sliding window's slots are the
positions themselves, the stochastic window's are a permutation of them.
"""

import dataclasses
from typing import Any

import keras

from keras_sa import _validation
from keras_sa.ops import dispatch
from keras_sa.ops.inputs import Inputs
from keras_sa.ops.inputs import empty_attention
from keras_sa.ops.windowed import flex
from keras_sa.ops.windowed import looped
from keras_sa.ops.windowed import native_block
from keras_sa.ops.windowed import portable
from keras_sa.ops.windowed import sdpa
from keras_sa.ops.windowed import triton
from keras_sa.ops.windowed import xla
from keras_sa.patterns.stochastic import NEIGHBORHOODS

# In order of preference, per Keras backend.
IMPLEMENTATIONS = {
    "jax": {
        "native_block": native_block,
        "triton": triton,
        "looped": looped,
        "portable": portable,
    },
    "torch": {
        "native_block": native_block,
        "triton": triton,
        "flex": flex,
        "sdpa": sdpa,
        "portable": portable,
    },
    "tensorflow": {
        "native_block": native_block,
        "xla": xla,
        "portable": portable,
    },
}


@dataclasses.dataclass(frozen=True)
class WindowedArguments(Inputs):
    """Checked arguments of a windowed attention.

    Attributes:
        permutation: int32 `[n]`, `[B, n]` or `[B, K, n]` with padding in the
            last slots, or `None` for the identity.
        left: slots that a token attends to before its own (`"window"`).
        right: slots that a token attends to after its own (`"window"`).
        window_size: `w`; the number of slots in a block (`"block"`).
        neighborhood: `"window"` or `"block"`.
        hidden_first: int or int32 `[B]`: keys at an original position below
            it are hidden, though those tokens attend to others; or `None`.
        hidden_windows: `(left, right, dilation)` of pairs to hide: those at an
            original distance, query minus key, within left and right that is
            a multiple of the dilation.
        Others: as in `Inputs`.
    """

    permutation: Any = None
    left: int = 0
    right: int = 0
    window_size: int = 1
    neighborhood: str = "window"
    hidden_first: Any = None
    hidden_windows: tuple = ()


def windowed_attention(
    inputs,
    permutation,
    *,
    reach,
    window_size,
    neighborhood="window",
    hidden_first=None,
    hidden_windows=(),
    implementation=None,
):
    """Chooses an implementation, and runs it.

    Args:
        inputs: `Inputs`.
        permutation: checked, padding last, or `None` for the identity.
        reach: `(left, right)` slots, for `neighborhood="window"`.
        window_size, neighborhood, hidden_first, hidden_windows: as in
            `WindowedArguments`.
        implementation: `None` or a name from the table.

    Returns:
        `[B, n, H, E]`, with `return_lse` also `[B, n, H]`.
    """
    arguments = arguments_of(
        inputs,
        permutation,
        reach=reach,
        window_size=window_size,
        neighborhood=neighborhood,
        hidden_first=hidden_first,
        hidden_windows=hidden_windows,
    )
    table = IMPLEMENTATIONS[keras.config.backend()]
    if inputs.is_empty:
        dispatch.check_name(table, implementation)
        return empty_attention(inputs)
    chosen = dispatch.choose(table, implementation, arguments)
    return chosen.forward(arguments)


def arguments_of(
    inputs,
    permutation,
    *,
    reach,
    window_size,
    neighborhood="window",
    hidden_first=None,
    hidden_windows=(),
):
    """`WindowedArguments`; the arguments of `windowed_attention`."""
    _validation.check_one_of("neighborhood", neighborhood, NEIGHBORHOODS)
    batch_size, length = inputs.query.shape[:2]
    if neighborhood == "block" and isinstance(length, int):
        # One block holds everything. No `min`, as in `common.choose_chunks`.
        window_size = window_size if window_size < length else length
    return WindowedArguments(
        **vars(inputs),
        permutation=permutation,
        left=reach[0],
        right=reach[1],
        window_size=window_size,
        neighborhood=neighborhood,
        hidden_first=_validation.check_hidden_first(hidden_first, batch_size),
        hidden_windows=tuple(hidden_windows),
    )
