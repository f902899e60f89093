"""First tokens that everybody attends to, and rows that attend to everybody.

Both are few: their scores are a small dense product, O(n m).

Letters: `B` batch, `n` tokens, `m` global tokens, `H` query heads, `K`
key/value heads, `G` query heads per key/value head, `D` head dim, `E` value
head dim, `R` rows.
"""

import functools

import keras
from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.patterns import permutation as permutations


def position_of_rank(inputs, rank):
    """The position of the real token of a rank: an int, or int32 `[B]`; `n`
    or more where there are not so many."""
    if inputs.padding_mask is None:
        return rank
    length = ops.shape(inputs.key)[1]
    token = _token_of_rank(inputs)  # [B, n]
    at = ops.minimum(rank, length - 1)
    return ops.where(_num_real(inputs) > rank, token[:, at], length)


def attend_to_first(inputs, num_keys):
    """Attention of every token to the first real tokens.

    Args:
        inputs: `Inputs`.
        num_keys: `m`.

    Returns:
        `[B, n, H, E]`, and `[B, n, H]` or `None`.
    """
    batch_size, length, num_heads = ops.shape(inputs.query)[:3]
    num_keys = _at_most(num_keys, length)
    token, exists = _tokens(inputs, ops.arange(num_keys, dtype="int32"))
    position = ops.arange(length, dtype="int32")[None]
    visible = _visible(
        inputs, position, token, ops.ones((1, 1), dtype="bool"), exists
    )
    output, lse = _attend(
        inputs,
        inputs.query,
        _take(inputs, inputs.key, token),
        _take(inputs, inputs.value, token),
        visible,
    )
    return _without_padding(inputs, output, lse)


def place_rows(pattern, inputs, output, lse):
    """Puts the rows of a `GlobalQueries` in place, computed densely.

    Args:
        pattern: `GlobalQueries`.
        inputs: `Inputs`.
        output: `[B, n, H, E]`.
        lse: `[B, n, H]` or `None`.
    """
    length = ops.shape(inputs.query)[1]
    num_rows, first = pattern.rows(length)
    rank = ops.arange(num_rows, dtype="int32")
    if inputs.padding_mask is not None and pattern.last is not None:
        first = _num_real(inputs)[:, None] - num_rows
    rank = rank + first  # [m] or [B, m]
    token, exists = _tokens(inputs, rank)
    position = ops.arange(length, dtype="int32")[None]
    keys_exist = inputs.padding_mask
    if keys_exist is None:
        keys_exist = ops.ones((1, 1), dtype="bool")
    visible = _visible(inputs, token, position, exists, keys_exist)
    rows, rows_lse = _attend(
        inputs,
        _take(inputs, inputs.query, token),
        _zeroed(inputs, inputs.key),
        _zeroed(inputs, inputs.value),
        visible,
    )
    if inputs.padding_mask is None and isinstance(length, int):
        start = first
        output = _joined(output, rows, start)
        return output, None if lse is None else _joined(lse, rows_lse, start)
    return _placed(inputs, pattern, output, lse, rows, rows_lse, first)


def nothing(inputs):
    """Output and log-sum-exp of rows that attend to nobody."""
    batch_size, length, num_heads = ops.shape(inputs.query)[:3]
    shape = (batch_size, length, num_heads)
    value_dim = inputs.value.shape[3]
    output = ops.zeros((*shape, value_dim), dtype=inputs.value.dtype)
    if not inputs.return_lse:
        return output, None
    dtype = softmax.compute_dtype(inputs.query.dtype)
    return output, ops.full(shape, -float("inf"), dtype=dtype)


def _joined(x, rows, start):
    """`x` with some rows from `start` on replaced."""
    stop = start + rows.shape[1]
    parts = [x[:, :start], rows, x[:, stop:]]
    return ops.concatenate([p for p in parts if p.shape[1] != 0], axis=1)


def _placed(inputs, pattern, output, lse, rows, rows_lse, first):
    """`_joined` where the rows are others in each example."""
    length = ops.shape(inputs.query)[1]
    rank, num_real = ops.arange(length, dtype="int32")[None], length
    real = ops.ones((1, 1), dtype="bool")
    if inputs.padding_mask is not None:
        real = inputs.padding_mask
        rank = permutations.valid_ranks(real)
        num_real = _num_real(inputs)[:, None]
    is_row = ops.logical_and(real, pattern.is_row(rank, num_real))
    at = ops.clip(rank - first, 0, ops.shape(rows)[1] - 1)
    rows = ordering.take_slots(rows, at)
    output = ops.where(is_row[..., None, None], rows, output)
    if lse is None:
        return output, None
    rows_lse = ordering.take_slots(rows_lse[..., None], at)[..., 0]
    return output, ops.where(is_row[..., None], rows_lse, lse)


def _at_most(count, length):
    """No more than there are, where that is known."""
    return min(count, length) if isinstance(length, int) else count


def _num_real(inputs):
    """int32 `[B]`."""
    return ops.sum(ops.cast(inputs.padding_mask, "int32"), axis=1)


def _token_of_rank(inputs):
    """int32 `[B, n]`: real tokens in order, then padding."""
    token = ops.arange(ops.shape(inputs.key)[1], dtype="int32")
    return permutations.padding_last(token, inputs.padding_mask)


def _tokens(inputs, rank):
    """The tokens of ranks `[m]` or `[B, m]`, and whether there are such:
    `[1 or B, m]`."""
    length = ops.shape(inputs.key)[1]
    num_real = length
    if inputs.padding_mask is not None:
        num_real = _num_real(inputs)[:, None]
    rank = rank if len(rank.shape) == 2 else rank[None]
    exists = ops.logical_and(rank >= 0, rank < num_real)
    rank = ops.clip(rank, 0, length - 1)
    if inputs.padding_mask is None:
        return rank, exists
    tokens = _token_of_rank(inputs)
    batch_size = ops.shape(tokens)[0]
    place = rank + permutations.starts(batch_size, length)
    return ops.take(ops.reshape(tokens, (-1,)), place, axis=0), exists


def _take(inputs, x, token):
    """Rows `[B, m, heads, F]` of `[B, n, heads, F]`; those of padding are 0.

    Padding may hold anything, also what overflows.
    """
    if token.shape[0] == 1 and inputs.padding_mask is None:
        return ops.take(x, token[0], axis=1)
    return ordering.take_slots(_zeroed(inputs, x), token)


def _zeroed(inputs, x):
    return ordering.zero_padding(x, inputs.padding_mask)


def _visible(inputs, row, column, row_exists, column_exists):
    """Boolean `[B or 1, R, S]` for positions `[B or 1, R]`, `[B or 1, S]`."""
    row, column = row[:, :, None], column[:, None, :]
    visible = ops.logical_and(row_exists[:, :, None], column_exists[:, None, :])
    if inputs.is_causal:
        visible = ops.logical_and(visible, column <= row)
    if inputs.attention_mask is not None:
        batch_size = ops.shape(inputs.query)[0]
        example = ops.arange(batch_size, dtype="int32")[:, None, None]
        allowed = ordering.look_up(inputs.attention_mask, example, row, column)
        visible = ops.logical_and(visible, allowed)
    return visible


def _attend(inputs, query, key, value, visible):
    """Few rows or few columns: `[B, R, H, E]`, and `[B, R, H]` or `None`.

    Args:
        query: `[B, R, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        visible: boolean, broadcasts to `[B, R, S]`.
    """
    batch_size, num_rows, num_heads, head_dim = ops.shape(query)
    num_kv_heads, value_dim = value.shape[2], value.shape[3]
    group = num_heads // num_kv_heads
    dtype = softmax.compute_dtype(inputs.query.dtype)

    def heads_first(x):
        return ops.transpose(ops.cast(x, dtype), (0, 2, 1, 3))

    query = ops.reshape(
        query, (batch_size, num_rows, num_kv_heads, group * head_dim)
    )
    query = ops.reshape(
        heads_first(query),
        (batch_size, num_kv_heads, num_rows * group, head_dim),
    )
    scores = softmax.score(
        query, heads_first(key), inputs.scale, inputs.attn_logits_soft_cap
    )  # [B, K, R*G, S]
    if group > 1 and visible.shape[1] != 1:
        visible = ops.repeat(visible, group, axis=1)
    visible = visible[:, None]
    sinks = None
    if inputs.sinks is not None:
        sinks = ops.reshape(
            ops.cast(inputs.sinks, dtype), (1, num_kv_heads, 1, group)
        )
        shape = (1, num_kv_heads, num_rows, group)
        sinks = ops.broadcast_to(sinks, shape)
        sinks = ops.reshape(sinks, (1, num_kv_heads, num_rows * group, 1))
    drop = None
    if inputs.dropout:
        drop = functools.partial(
            keras.random.dropout,
            rate=inputs.dropout,
            seed=inputs.dropout_seed,
        )
    output, lse = softmax.attend(
        scores,
        heads_first(value),
        softmax.bias_of(visible, dtype),
        sees_something=ops.any(visible, axis=-1, keepdims=True),
        sinks=sinks,
        return_lse=inputs.return_lse,
        drop=drop,
    )

    def restore(x, features):
        shape = (batch_size, num_kv_heads, num_rows, group * features)
        x = ops.transpose(ops.reshape(x, shape), (0, 2, 1, 3))
        return ops.reshape(x, (batch_size, num_rows, num_heads, features))

    output = ops.cast(restore(output, value_dim), inputs.value.dtype)
    if not inputs.return_lse:
        return output, None
    return output, restore(lse, 1)[..., 0]


def _without_padding(inputs, output, lse):
    output = _zeroed(inputs, output)
    if lse is not None and inputs.padding_mask is not None:
        real = inputs.padding_mask[:, :, None]
        lse = ops.where(real, lse, -float("inf"))
    return output, lse
