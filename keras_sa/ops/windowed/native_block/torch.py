"""Whole blocks through torch's scaled dot-product attention.

`keras.ops.dot_product_attention` would copy query, key and value and repeat
key/value heads. Views, and groups that the kernel reads itself, are faster on
CPUs too.

What lets torch take its flash kernel on a GPU: a half dtype, no mask tensor,
head dims that are equal and at most 256, numbers of a head side by side.

Letters: `N` blocks of all examples, `w` slots in a block, `H` query heads, `K`
key/value heads, `D` head dim, `E` value head dim.
"""

import keras
import torch
from keras import ops

from keras_sa.backend.torch import bias_of

# The kernels count blocks along a grid axis with 16 bits
# (https://github.com/pytorch/pytorch/issues/146704), and the gradient of the
# flash kernel has 32-bit offsets over padded queries
# (https://github.com/Dao-AILab/flash-attention/pull/2260).
_LONGEST_GRID = 2**16 - 1
_LARGEST_OFFSET = 2**31 - 1
_PADDED_ROWS, _PADDED_DIMS = 128, 64


def attend(query, key, value, visible, *, scale, is_causal):
    """Attention within blocks.

    Args:
        query: `[N, w, H, D]`.
        key: `[N, w, K, D]`.
        value: `[N, w, K, E]`.
        visible: boolean keys `[N, 1, 1, w]`, or `None` for all.
        scale: factor on the scores.
        is_causal: whether a slot attends to no later one.

    Returns:
        `[N, w, H, E]`.
    """
    dtype = keras.backend.result_type(query.dtype, key.dtype, value.dtype)
    tensors = [ops.cast(x, dtype) for x in (query, key, value)]
    most = most_blocks(query)
    if most is None or query.shape[0] <= most:
        return _attend(*tensors, visible, scale, is_causal)
    parts = [x.split(most) for x in tensors]
    masks = [None] * len(parts[0]) if visible is None else visible.split(most)
    return torch.cat(
        [_attend(*part, scale, is_causal) for part in zip(*parts, masks)]
    )


def most_blocks(query):
    """How many blocks one call of a GPU kernel takes, `None` for any."""
    num_blocks, rows, num_heads, head_dim = query.shape
    # A program for export is not to depend on the number of examples, which
    # is then no int.
    if query.device.type == "cpu" or not isinstance(num_blocks, int):
        return None
    rows = -(-rows // _PADDED_ROWS) * _PADDED_ROWS
    head_dim = -(-head_dim // _PADDED_DIMS) * _PADDED_DIMS
    fitting = _LARGEST_OFFSET // (rows * num_heads * head_dim)
    return max(min(fitting, _LONGEST_GRID), 1)


def _attend(query, key, value, visible, scale, is_causal):
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    group = query.shape[1] // key.shape[1]
    if group > 1 and not _reads_groups(query, value, visible):
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        group = 1
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if visible is None else bias_of(visible, query.dtype),
        is_causal=is_causal,
        scale=scale,
        enable_gqa=group > 1,
    )
    return output.transpose(1, 2)


def _reads_groups(query, value, visible):
    """Whether a fused kernel reads one key/value head for many query heads.

    Flash attention does. Where a GPU cannot take that, the kernels that come
    next do not in every version of torch, and repeated heads cost less than
    the scores that torch would then hold.
    """
    if query.device.type == "cpu":
        return True
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    return is_half and visible is None and query.shape[3] == value.shape[3]
