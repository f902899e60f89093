"""Attention of chunks of slots: what those share that go by chunks.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `G` query
heads per key/value head, `N = B * K`, `D` head dim, `E` value head dim, `m`
slots, `c` slots in a chunk, `t` chunks, `S` keys of a chunk.
"""

import functools

import keras
from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.ops.windowed import common


def attend_in_slot_order(attend, arguments):
    """Permutes, attends in a window of slots, and restores the order.

    Args:
        attend: function of the arguments, `Chunks`, query `[N, m, G*D]`, key
            `[N, m, D]`, value `[N, m, E]` and the original positions
            `[N or 1, m]` of the slots. It returns the output `[N, t, c*G, E]`
            and the log-sum-exp `[N, t, c*G]` or `None`; `t * c >= m`.
        arguments: `WindowedArguments`.
    """
    chunks = common.choose_chunks(arguments)
    order = common.slot_order(arguments)
    inverse = common.slots_of_tokens(arguments, order)
    query, key, value = _in_slot_order(arguments, order, inverse)
    position = _positions(arguments, order)
    output, lse = attend(arguments, chunks, query, key, value, position)
    return _in_original_order(arguments, order, inverse, output, lse)


def attend_at_once(arguments, chunks, query, key, value, position):
    """All chunks as one batch: O(n w) scores."""
    return attend_rows(
        arguments,
        chunks,
        query,
        key,
        value,
        position,
        example_of_row(arguments),
        sinks_of_row(arguments),
    )


def attend_rows(
    arguments,
    chunks,
    query,
    key,
    value,
    position=None,
    example=None,
    sinks=None,
    mask=None,
):
    """Attention of whole rows, given their positions or their mask."""
    if mask is None:
        position = common.positions_with_neighbors(position, chunks)
        mask = common.mask_of(arguments, position, chunks, example)
    return attend_chunks(
        arguments,
        chunks,
        common.cut(
            query, chunks, common.num_groups(arguments)
        ),  # [R, t, c*G, D]
        common.with_neighbors(key, chunks),  # [R, t, S, D]
        common.with_neighbors(value, chunks),  # [R, t, S, E]
        mask,
        sinks,
    )


def attend_chunks(arguments, chunks, query, key, value, mask, sinks):
    """Attention of chunks to their own keys, whatever chunks they are.

    Args:
        arguments: `WindowedArguments`; its tensors are not read.
        chunks: `Chunks`.
        query: `[R, t, c*G, D]`, R rows.
        key: `[R, t, S, D]`.
        value: `[R, t, S, E]`.
        mask: from `mask_of`.
        sinks: `[R, G]` or `None`.

    Returns:
        Output `[R, t, c*G, E]` and log-sum-exp `[R, t, c*G]` or `None`.
    """
    bias, sees_something = mask
    scores = softmax.score(
        query, key, arguments.scale, arguments.attn_logits_soft_cap
    )
    return softmax.attend(
        scores,
        value,
        bias,
        sees_something=sees_something,
        sinks=_sinks_of_queries(sinks, chunks),
        return_lse=arguments.return_lse,
        drop=_dropout(arguments),
    )


def _dropout(arguments):
    if not arguments.dropout:
        return None
    return functools.partial(
        keras.random.dropout,
        rate=arguments.dropout,
        seed=arguments.dropout_seed,
    )


def example_of_row(arguments):
    """The index in the batch of each row, int32 `[N]`, for the attention mask;
    `None` without one."""
    if arguments.attention_mask is None:
        return None
    example = ops.arange(ops.shape(arguments.query)[0], dtype="int32")
    return ops.repeat(example, arguments.key.shape[2])


def sinks_of_row(arguments, num_examples=None):
    """`[H]` as `[N, G]`, or `None`; of `num_examples` instead of all."""
    a = arguments
    if a.sinks is None:
        return None
    if num_examples is None:
        num_examples = ops.shape(a.query)[0]
    shape = (num_examples, a.key.shape[2], common.num_groups(a))
    sinks = ops.broadcast_to(ops.reshape(a.sinks, (1, *shape[1:])), shape)
    sinks = ops.reshape(sinks, (-1, shape[2]))
    return ops.cast(sinks, softmax.compute_dtype(a.query.dtype))


def _sinks_of_queries(sinks, chunks):
    """`[N, G]` as `[N, 1, c*G, 1]`, or `None`."""
    if sinks is None:
        return None
    rows, group = ops.shape(sinks)
    sinks = ops.broadcast_to(sinks[:, None], (rows, chunks.size, group))
    return ops.reshape(sinks, (rows, 1, chunks.size * group, 1))


def _in_slot_order(arguments, order, inverse):
    """Query `[N, m, G*D]`, key `[N, m, D]`, value `[N, m, E]`, m >= n slots."""
    a = arguments
    batch_size, length, num_heads, head_dim = ops.shape(a.query)
    num_kv_heads, group = a.key.shape[2], common.num_groups(a)
    dtype = softmax.compute_dtype(a.query.dtype)
    query = ops.reshape(
        a.query, (batch_size, length, num_kv_heads, group * head_dim)
    )
    tensors = [
        ordering.zero_padding(x, a.padding_mask)
        for x in (query, a.key, a.value)
    ]
    index = order
    if order is not None:
        index = ordering.any_token(order, length)  # slots beyond the last token
    rows = [ordering.permute_heads(x, index, inverse) for x in tensors]
    return [ops.cast(x, dtype) for x in rows]


def _positions(arguments, order):
    """Original positions `[N or 1, m]`; see `common`."""
    a = arguments
    batch_size = ops.shape(a.query)[0]
    position = common.original_positions(arguments, order)
    if len(position.shape) == 1 and a.attention_mask is None:
        return position[None]
    num_rows, num_kv_heads = batch_size * a.key.shape[2], a.key.shape[2]
    num_slots = ops.shape(position)[-1]
    position = ops.broadcast_to(
        ordering.with_head_axis(position),
        (batch_size, num_kv_heads, num_slots),
    )
    return ops.reshape(position, (num_rows, num_slots))


def _in_original_order(arguments, order, inverse, output, lse):
    """`[N, t, c*G, E]` and `[N, t, c*G]` as `[B, n, H, E]` and `[B, n, H]`."""
    a = arguments
    batch_size, length, num_heads = ops.shape(a.query)[:3]
    num_kv_heads, group = a.key.shape[2], common.num_groups(a)

    def restore(x, features):
        x = ops.reshape(x, (batch_size * num_kv_heads, -1, group * features))
        if order is not None:
            # A window fills its last chunk with slots that are no token's.
            x = x[:, : ops.shape(order)[-1]]
            x = ordering.unpermute_heads(
                x, inverse, batch_size, num_kv_heads, order
            )
            return ops.reshape(x, (batch_size, length, num_heads, features))
        x = ops.reshape(x, (batch_size, num_kv_heads, -1, group, features))
        if x.shape[2] is None or x.shape[2] != a.query.shape[1]:
            x = x[:, :, :length]  # with a slow gradient on TensorFlow
        x = ops.transpose(x, (0, 2, 1, 3, 4))
        return ops.reshape(x, (batch_size, length, num_heads, features))

    output = ops.cast(restore(output, a.value.shape[3]), a.value.dtype)
    if not a.return_lse:
        return output
    lse = restore(lse, 1)[..., 0]
    if a.padding_mask is not None:
        lse = ops.where(a.padding_mask[:, :, None], lse, -float("inf"))
    return output, lse
