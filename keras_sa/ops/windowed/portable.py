"""Windowed attention in `keras.ops`, for every backend: O(n w), no n x n.

Slots are cut in chunks. The queries of a chunk meet the keys of their own
chunk and of the neighbours that the window reaches, under one small mask.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `G` query
heads per key/value head, `N = B * K`, `D` head dim, `E` value head dim, `c`
slots in a chunk, `t` chunks, `S` keys of a chunk.
"""

import dataclasses
import functools

import keras
from keras import ops

from keras_sa.ops import _softmax
from keras_sa.ops import ordering
from keras_sa.ops import patterns
from keras_sa.patterns import permutation as permutations

# The original position of a key that nobody may see.
NOWHERE = 2**31 - 1
# On TensorFlow, heads are parted as long as a part has as many bytes of scores.
PART_BYTES = 3 * 2**20
MOST_PARTS = 8


@dataclasses.dataclass(frozen=True)
class Chunks:
    """How slots are cut: `before` and `after` count the neighbour chunks."""

    size: int
    before: int
    after: int

    @property
    def keys(self):
        return (self.before + 1 + self.after) * self.size


def why_not(arguments):
    """The portable path does everything."""
    return None


def forward(arguments):
    return attend_in_slot_order(_attend_at_once, arguments)


def attend_in_slot_order(attend, arguments):
    """Permutes, attends in a window of slots, and restores the order.

    Args:
        attend: function of the arguments, `Chunks`, query `[N, m, G*D]`, key
            `[N, m, D]`, value `[N, m, E]` and the original positions
            `[N or 1, m]` of the slots. It returns the output `[N, t, c*G, E]`
            and the log-sum-exp `[N, t, c*G]` or `None`; `t * c >= m`.
        arguments: `WindowedArguments`.
    """
    chunks = choose_chunks(arguments)
    order = slot_order(arguments)
    inverse = slots_of_tokens(arguments, order)
    query, key, value = _in_slot_order(arguments, order, inverse)
    position = _positions(arguments, order)
    output, lse = attend(arguments, chunks, query, key, value, position)
    return _in_original_order(arguments, order, inverse, output, lse)


def _attend_at_once(arguments, chunks, query, key, value, position):
    """All chunks as one batch: O(n w) scores. Some rows after the others,
    where that is faster."""
    rows = {
        "query": query,
        "key": key,
        "value": value,
        "position": position,
        "example": example_of_row(arguments),
        "sinks": sinks_of_row(arguments),
    }
    num_parts = _num_parts(arguments)
    if num_parts == 1:
        return _attend_rows(arguments, chunks, **rows)
    mask = None
    if position.shape[0] == 1:  # one for all
        mask = mask_of(
            arguments,
            positions_with_neighbors(rows.pop("position"), chunks),
            chunks,
        )
    parts = [
        _attend_rows(arguments, chunks, mask=mask, **part)
        for part in _split(rows, num_parts)
    ]
    outputs, lses = zip(*parts)
    return ops.concatenate(outputs, axis=0), (
        ops.concatenate(lses, axis=0) if arguments.return_lse else None
    )


def _num_parts(arguments):
    """In how many parts to attend: scores of a part stay in the cache.

    TensorFlow runs operations one by one, each over all that it is given. JAX
    and torch have faster ways to attend to a part at a time.
    """
    if keras.config.backend() != "tensorflow" or arguments.dropout:
        return 1  # an integer seed would drop the same weights in each part
    batch_size, length, num_kv_heads = arguments.key.shape[:3]
    most = MOST_PARTS
    if batch_size is not None and length is not None:
        most = min(bytes_of_all_scores(arguments) // PART_BYTES, most)
    num_rows = (batch_size or 1) * num_kv_heads
    return max(x for x in range(1, max(most, 1) + 1) if num_rows % x == 0)


def _split(rows, num_parts):
    """A dict of tensors `[N, ...]` or `None` as such dicts of some rows."""
    tensors = {k: v for k, v in rows.items() if v is not None}
    parts = [ops.split(x, num_parts, axis=0) for x in tensors.values()]
    return [dict(zip(tensors, part)) for part in zip(*parts)]


def _attend_rows(
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
        position = positions_with_neighbors(position, chunks)
        mask = mask_of(arguments, position, chunks, example)
    return attend_chunks(
        arguments,
        chunks,
        cut(query, chunks, num_groups(arguments)),  # [R, t, c*G, D]
        with_neighbors(key, chunks),  # [R, t, S, D]
        with_neighbors(value, chunks),  # [R, t, S, E]
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
    scores = _softmax.score(
        query, key, arguments.scale, arguments.logit_soft_cap
    )
    return _softmax.attend(
        scores,
        value,
        bias,
        sees_something=sees_something,
        sinks=_sinks_of_queries(sinks, chunks),
        return_lse=arguments.return_lse,
        drop=_dropout(arguments),
    )


def mask_of(arguments, key_position, chunks, example=None):
    """What hides keys from the queries of each chunk.

    Args:
        As of `visible_keys`.

    Returns:
        A bias `[R or 1, t, c*G, S]` for the scores, and whether each query
        sees something `[R or 1, t, c*G, 1]`, `None` if all real ones do.
    """
    a = arguments
    visible = visible_keys(a, key_position, chunks, example)
    sees_something = None
    if a.exclude_local is not None or a.attention_mask is not None:
        sees_something = ops.any(visible, axis=-1, keepdims=True)
    elif a.padding_mask is not None:  # a real token sees itself
        own = chunks.before * chunks.size
        own_position = key_position[:, :, own : own + chunks.size, None]
        sees_something = own_position != NOWHERE
    bias = _softmax.bias_of(visible, _softmax.compute_dtype(a.query.dtype))
    return _for_each_query(a, bias), _for_each_query(a, sees_something)


def _for_each_query(arguments, x):
    """`[R, t, c, ...]` as `[R, t, c*G, ...]`; `None` as it is."""
    group = num_groups(arguments)
    return x if x is None or group == 1 else ops.repeat(x, group, axis=2)


def _dropout(arguments):
    if not arguments.dropout:
        return None
    return functools.partial(
        keras.random.dropout, rate=arguments.dropout, seed=arguments.seed
    )


def choose_chunks(arguments):
    """Half a window per chunk: 1.5 w keys a query, the least arithmetic that
    does not make the matrix products too small (measured on CPUs)."""
    if arguments.neighborhood == "block":
        return Chunks(arguments.window_size, 0, 0)
    length = arguments.query.shape[1]
    left, right = arguments.left, arguments.right
    if isinstance(length, int):  # nothing to reach beyond the ends
        # No `min`: sizes of a long text are not to depend on its length, or
        # `torch.compile` compiles for every length.
        left = left if left < length else length - 1
        right = right if right < length else length - 1
    size = max((left + right + 1) // 2, 1)
    chunks = Chunks(size, -(-left // size), -(-right // size))
    if isinstance(length, int) and chunks.keys >= length:
        return Chunks(length, 0, 0)  # one chunk is less work than its halves
    return chunks


def bytes_of_scores(arguments, chunks):
    """Bytes of the scores of a chunk, for one key/value head."""
    dtype = _softmax.compute_dtype(arguments.query.dtype)
    scores = num_groups(arguments) * chunks.size * chunks.keys
    return scores * (8 if dtype == "float64" else 4)


def bytes_of_all_scores(arguments):
    """Bytes of the scores that the portable path holds; 0 if the size of the
    batch is unknown."""
    chunks = choose_chunks(arguments)
    batch_size, length, num_kv_heads = arguments.key.shape[:3]
    num_chunks = num_chunks_of(length, chunks)
    rows = (batch_size or 0) * num_kv_heads
    return rows * num_chunks * bytes_of_scores(arguments, chunks)


def num_groups(arguments):
    return arguments.query.shape[2] // arguments.key.shape[2]


def _in_slot_order(arguments, order, inverse):
    """Query `[N, m, G*D]`, key `[N, m, D]`, value `[N, m, E]`, m >= n slots."""
    a = arguments
    batch_size, length, num_heads, head_dim = ops.shape(a.query)
    num_kv_heads, group = a.key.shape[2], num_groups(a)
    dtype = _softmax.compute_dtype(a.query.dtype)
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


def slot_order(arguments):
    """The token of each slot, `n` where there is none; `None`: the identity."""
    if arguments.neighborhood == "block":
        return ordering.sort_blocks(
            arguments.permutation, arguments.window_size, arguments.padding_mask
        )
    return arguments.permutation


def slots_of_tokens(arguments, order):
    """The inverse `[..., n]` of an order `[..., m]`, or `None` without one."""
    if order is None:
        return None
    length = ops.shape(arguments.query)[1]
    return permutations.invert_permutation(order)[..., :length]


def original_positions(arguments, order):
    """The original position in each slot, `NOWHERE` for what nobody may see:
    in the shape of the order, with a padding mask at least `[B, m]`. Some
    position `[m]` where it makes no difference which."""
    length = ops.shape(arguments.query)[1]
    position = order
    if not order_matters(arguments, order):
        num_slots = length if order is None else ops.shape(order)[-1]
        position = ops.arange(num_slots, dtype="int32")
    real = ordering.is_real(position, length, arguments.padding_mask)
    return ops.where(real, position, NOWHERE)


def order_matters(arguments, order):
    """Whether it depends on an order who sees whom among the slots."""
    a = arguments
    masks = (a.exclude_local, a.padding_mask, a.attention_mask)
    return order is not None and (
        a.causal or any(mask is not None for mask in masks)
    )


def _positions(arguments, order):
    """Original positions `[N or 1, m]`; `NOWHERE` for what nobody may see."""
    a = arguments
    batch_size = ops.shape(a.query)[0]
    position = original_positions(arguments, order)
    if len(position.shape) == 1 and a.attention_mask is None:
        return position[None]
    num_rows, num_kv_heads = batch_size * a.key.shape[2], a.key.shape[2]
    num_slots = ops.shape(position)[-1]
    position = ops.broadcast_to(
        ordering.with_head_axis(position),
        (batch_size, num_kv_heads, num_slots),
    )
    return ops.reshape(position, (num_rows, num_slots))


def num_chunks_of(num_slots, chunks):
    return (num_slots + chunks.size - 1) // chunks.size


def cut(query, chunks, group):
    """`[N, m, G*D]` as `[N, t, c*G, D]`."""
    rows, num_slots, features = ops.shape(query)
    num_chunks = num_chunks_of(num_slots, chunks)
    query = ordering.pad_end(
        query, num_chunks * chunks.size - num_slots, 0, axis=1
    )
    return ops.reshape(
        query, (rows, num_chunks, chunks.size * group, features // group)
    )


def with_neighbors(x, chunks):
    """`[N, m, F]` as `[N, t, S, F]`: each chunk beside its neighbours.

    The first and the last chunk are neighbours here; `visible_keys`
    hides that. Rolling has a fast gradient on every backend: on TensorFlow
    the gradient of slices took five times as long.
    """
    x = cut(x, chunks, 1)
    shifts = range(chunks.before, -chunks.after - 1, -1)
    parts = [ops.roll(x, shift, axis=1) if shift else x for shift in shifts]
    return ops.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]


def positions_with_neighbors(position, chunks):
    """`[N, m]` as `[N, t, S]`; `NOWHERE` beyond the ends."""
    rows, num_slots = ops.shape(position)
    num_chunks = num_chunks_of(num_slots, chunks)
    edges = (chunks.before * chunks.size, chunks.after * chunks.size)
    front = ops.full((rows, edges[0]), NOWHERE, dtype="int32")
    back = num_chunks * chunks.size - num_slots + edges[1]
    padded = ordering.pad_end(position, back, NOWHERE, axis=1)
    padded = ops.concatenate([front, padded], axis=1)
    count = num_chunks + chunks.before + chunks.after
    padded = ops.reshape(padded, (rows, count, chunks.size))
    last = chunks.before + 1 + chunks.after
    parts = [padded[:, start : start + num_chunks] for start in range(last)]
    return ops.concatenate(parts, axis=2)


def visible_keys(arguments, key_position, chunks, example):
    """Which keys each query of a chunk sees.

    Args:
        arguments: `WindowedArguments`.
        key_position: original positions `[R or 1, t, S]`, R rows.
        chunks: `Chunks`.
        example: the index in the batch of each row `[R]`, as from
            `example_of_row`; `None` without an attention mask.

    Returns:
        Boolean `[R or 1, t, c, S]`.
    """
    a = arguments
    own = chunks.before * chunks.size
    query_position = key_position[:, :, own : own + chunks.size, None]
    key_position = key_position[:, :, None, :]
    if a.causal:  # `NOWHERE` is later than any query; hidden queries, before
        asking = ops.where(query_position == NOWHERE, -1, query_position)
        visible = key_position <= asking
    else:
        visible = ops.logical_and(
            key_position != NOWHERE, query_position != NOWHERE
        )
    if a.neighborhood == "window":
        visible = ops.logical_and(visible, _band(chunks, a.left, a.right))
    if a.exclude_local is not None:
        local = patterns.within_reach(
            query_position - key_position, a.exclude_local
        )
        visible = ops.logical_and(visible, ops.logical_not(local))
    if a.attention_mask is not None:
        allowed = _look_up(a, example, query_position, key_position)
        visible = ops.logical_and(visible, allowed)
    return visible


def _band(chunks, left, right):
    """Boolean `[c, S]`: the keys within the window of each row."""
    # No numpy here: `torch.compile` would break the graph at an array.
    row = ops.arange(chunks.size, dtype="int32")[:, None]
    column = ops.arange(chunks.keys, dtype="int32")[None, :]
    distance = row - column + chunks.before * chunks.size
    return patterns.within_reach(distance, (left, right))


def example_of_row(arguments):
    """The index in the batch of each row, int32 `[N]`, for the attention mask;
    `None` without one."""
    if arguments.attention_mask is None:
        return None
    example = ops.arange(ops.shape(arguments.query)[0], dtype="int32")
    return ops.repeat(example, arguments.key.shape[2])


def _look_up(arguments, example, query_position, key_position):
    """The entries of the attention mask for pairs of positions, O(n w)."""
    length = ops.shape(arguments.query)[1]
    return patterns.look_up(
        arguments.attention_mask,
        example[:, None, None, None],  # [N, 1, 1, 1]
        ops.minimum(query_position, length - 1),
        ops.minimum(key_position, length - 1),
    )


def sinks_of_row(arguments, num_examples=None):
    """`[H]` as `[N, G]`, or `None`; of `num_examples` instead of all."""
    a = arguments
    if a.sinks is None:
        return None
    if num_examples is None:
        num_examples = ops.shape(a.query)[0]
    shape = (num_examples, a.key.shape[2], num_groups(a))
    sinks = ops.broadcast_to(ops.reshape(a.sinks, (1, *shape[1:])), shape)
    sinks = ops.reshape(sinks, (-1, shape[2]))
    return ops.cast(sinks, _softmax.compute_dtype(a.query.dtype))


def _sinks_of_queries(sinks, chunks):
    """`[N, G]` as `[N, 1, c*G, 1]`, or `None`."""
    if sinks is None:
        return None
    rows, group = ops.shape(sinks)
    sinks = ops.broadcast_to(sinks[:, None], (rows, chunks.size, group))
    return ops.reshape(sinks, (rows, 1, chunks.size * group, 1))


def _in_original_order(arguments, order, inverse, output, lse):
    """`[N, t, c*G, E]` and `[N, t, c*G]` as `[B, n, H, E]` and `[B, n, H]`."""
    a = arguments
    batch_size, length, num_heads = ops.shape(a.query)[:3]
    num_kv_heads, group = a.key.shape[2], num_groups(a)

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
