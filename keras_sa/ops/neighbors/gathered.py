"""Attention of every token to a list of its own, whatever is on it.

It is what serves a pattern that nothing faster knows: O(n m).

Letters: `B` batch, `n` tokens, `K` key/value heads, `m` neighbors.
"""

import keras
from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops.neighbors import api
from keras_sa.patterns import lists
from keras_sa.patterns import within_reach

# The most bytes of gathered keys and values at a time.
_BYTES = 2**26
_MOST_PARTS = 64


def attend_to_lists(
    inputs, neighbor_lists, *, hidden_first=None, hidden_windows=()
):
    """Attention to the distinct tokens of several lists.

    Args:
        inputs: `Inputs`.
        neighbor_lists: int32 `[n, m]`, `[K, n, m]`, or with a padding mask
            `[B, n, m]` or `[B, K, n, m]`.
        hidden_first: keys at a lower position are hidden: int, int32 `[B]` or
            `None`.
        hidden_windows: distances `(left, right, dilation)` that are hidden.

    Returns:
        `[B, n, H, E]`, and `[B, n, H]` or `None`.
    """
    padded = inputs.padding_mask is not None
    neighbors = lists.distinct(lists.together(neighbor_lists))
    if len(neighbors.shape) == 2 + padded:
        neighbors = ops.expand_dims(neighbors, -3)
    if not padded:
        neighbors = neighbors[None]  # [B or 1, K or 1, n, m]
    neighbors = _visible(inputs, neighbors, hidden_first, hidden_windows)
    output, lse = _attend(inputs, neighbors)
    if padded:
        real = inputs.padding_mask[:, :, None]
        output = ordering.zero_padding(output, inputs.padding_mask)
        if lse is not None:
            lse = ops.where(real, lse, -float("inf"))
    return output, lse


def _visible(inputs, neighbors, hidden_first, hidden_windows):
    """The lists without what is hidden."""
    position = ops.arange(ops.shape(neighbors)[2], dtype="int32")[:, None]
    visible = neighbors >= 0
    if hidden_first is not None:
        if not isinstance(hidden_first, int):
            hidden_first = ops.reshape(hidden_first, (-1, 1, 1, 1))
        visible = ops.logical_and(visible, neighbors >= hidden_first)
    for left, right, dilation in hidden_windows:
        distance = position - neighbors
        hidden = within_reach(distance, (left, right))
        if dilation > 1:
            hidden = ops.logical_and(hidden, distance % dilation == 0)
        visible = ops.logical_and(visible, ops.logical_not(hidden))
    if inputs.attention_mask is not None:
        batch_size = ops.shape(inputs.query)[0]
        example = ops.arange(batch_size, dtype="int32")[:, None, None, None]
        allowed = ordering.look_up(
            inputs.attention_mask,
            example,
            position,
            ops.maximum(neighbors, 0),
        )
        visible = ops.logical_and(visible, allowed)
    return ops.where(visible, neighbors, -1)


def _attend(inputs, neighbors):
    """Some rows after the others, their keys gathered anew for gradients."""
    key, value = (
        ordering.zero_padding(x, inputs.padding_mask)
        for x in (inputs.key, inputs.value)
    )

    def attend(query, key, value, neighbors):
        return api.attend(
            api.NeighborArguments(
                query,
                key,
                value,
                neighbors,
                scale=inputs.scale,
                attn_logits_soft_cap=inputs.attn_logits_soft_cap,
                sinks=inputs.sinks,
                return_lse=inputs.return_lse,
                dropout=inputs.dropout,
                dropout_seed=inputs.dropout_seed,
            )
        )

    length = inputs.query.shape[1]
    num_parts = _num_parts(inputs, neighbors)
    if num_parts == 1:
        return attend(inputs.query, key, value, neighbors)
    size = -(-length // num_parts)
    outputs = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        rows = neighbors[:, :, start:stop]
        query = inputs.query[:, start:stop]

        def part(query, key, value, rows=rows):
            return tuple(
                x for x in attend(query, key, value, rows) if x is not None
            )

        # Computed again, dropout would drop others.
        part = part if inputs.dropout else keras.remat(part)
        outputs.append(part(query, key, value))
    parts, *lses = zip(*outputs)
    return ops.concatenate(parts, axis=1), (
        ops.concatenate(lses[0], axis=1) if inputs.return_lse else None
    )


def _num_parts(inputs, neighbors):
    shape = (*inputs.key.shape, *inputs.value.shape, neighbors.shape[3])
    if not all(isinstance(size, int) for size in shape):
        return 1
    batch_size, length, num_heads, head_dim = inputs.key.shape
    features = head_dim + inputs.value.shape[3]
    entries = batch_size * length * num_heads * features * neighbors.shape[3]
    return max(min(-(-4 * entries // _BYTES), _MOST_PARTS, length), 1)
