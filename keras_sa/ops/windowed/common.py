"""What the implementations of windowed attention share: which slots there
are, how they are cut in chunks, and who attends to whom among them.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `G` query
heads per key/value head, `N = B * K`, `F` features, `m` slots, `c` slots in a
chunk, `t` chunks, `S` keys of a chunk, `w` window.
"""

import dataclasses

from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns import within_reach

# The original position of what is no key and no query.
NOWHERE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Chunks:
    """How slots are cut: `before` and `after` count the neighbor chunks."""

    size: int
    before: int
    after: int

    @property
    def keys(self):
        return (self.before + 1 + self.after) * self.size


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


def num_chunks_of(num_slots, chunks):
    return (num_slots + chunks.size - 1) // chunks.size


def num_groups(arguments):
    return arguments.query.shape[2] // arguments.key.shape[2]


def bytes_of_scores(arguments, chunks):
    """Bytes of the scores of a chunk, for one key/value head."""
    dtype = softmax.compute_dtype(arguments.query.dtype)
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
    """`[N, m, F]` as `[N, t, S, F]`: each chunk beside its neighbors.

    The first and the last chunk are neighbors here; `visible_keys`
    hides that. Rolling has a fast gradient on every backend: on TensorFlow
    the gradient of slices took five times as long.
    """
    x = cut(x, chunks, 1)
    shifts = range(chunks.before, -chunks.after - 1, -1)
    parts = [ops.roll(x, shift, axis=1) if shift else x for shift in shifts]
    return ops.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]


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


def order_of(arguments):
    """The token of each slot, int32 `[B or 1, K or 1, n]`; `-1 - token` for
    padding. `None` for the identity without padding."""
    a = arguments
    order = slot_order(a)
    if order is None and a.padding_mask is None:
        return None
    length = ops.shape(a.query)[1]
    if order is None:
        order = ops.arange(length, dtype="int32")
    # Slots beyond the last token are the last ones of the last block.
    order = order[..., :length]
    if a.padding_mask is not None:
        real = ordering.is_real(order, length, a.padding_mask)
        order = ops.where(real, order, -1 - order)
    return ordering.with_head_axis(order)


def original_positions(arguments, order):
    """Who is in each slot: its original position; `-1 - position` where others
    do not attend to it (`hidden_first`), though it attends to them; `NOWHERE`
    where nobody is.

    Returns:
        int32 in the shape of the order, with a padding mask or a tensor
        `hidden_first` at least `[B, m]`. Some position `[m]` where it makes no
        difference which.
    """
    a = arguments
    length = ops.shape(a.query)[1]
    position = order
    if not order_matters(a, order):
        num_slots = length if order is None else ops.shape(order)[-1]
        position = ops.arange(num_slots, dtype="int32")
    real = ordering.is_real(position, length, a.padding_mask)
    position = ops.where(real, position, NOWHERE)
    if a.hidden_first is None:
        return position
    first = a.hidden_first
    if not isinstance(first, int):
        if len(position.shape) == 1:
            position = position[None]
        first = ops.reshape(first, (-1,) + (1,) * (len(position.shape) - 1))
    return ops.where(position < first, -1 - position, position)


def _as_queries(position):
    """The positions of those who attend; `NOWHERE` stays."""
    return ops.where(position < 0, -1 - position, position)


def _as_keys(position):
    """The positions of those attended to, `NOWHERE` for all others."""
    return ops.where(position < 0, NOWHERE, position)


def order_matters(arguments, order):
    """Whether it depends on an order who attends to whom among the slots."""
    a = arguments
    masks = (a.padding_mask, a.attention_mask, a.hidden_first)
    return order is not None and bool(
        a.is_causal
        or a.hidden_windows
        or any(mask is not None for mask in masks)
    )


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


def visible_keys(arguments, position, chunks, example):
    """Which keys each query of a chunk attends to.

    Args:
        arguments: `WindowedArguments`.
        position: as from `original_positions`, `[R or 1, t, S]`, R rows.
        chunks: `Chunks`.
        example: the index in the batch of each row `[R]`, as from
            `example_of_row`; `None` without an attention mask.

    Returns:
        Boolean `[R or 1, t, c, S]`.
    """
    a = arguments
    own = chunks.before * chunks.size
    row = position[:, :, own : own + chunks.size, None]
    column = position[:, :, None, :]
    if a.hidden_first is not None:
        row, column = _as_queries(row), _as_keys(column)
    if a.is_causal:  # `NOWHERE` is later than any query; hidden ones, before
        visible = column <= ops.where(row == NOWHERE, -1, row)
    else:
        visible = ops.logical_and(column != NOWHERE, row != NOWHERE)
    if a.neighborhood == "window":
        visible = ops.logical_and(visible, _band(chunks, a.left, a.right))
    for left, right, dilation in a.hidden_windows:
        hidden = within_reach(row - column, (left, right))
        if dilation > 1:
            is_step = (row - column) % dilation == 0
            hidden = ops.logical_and(hidden, is_step)
        visible = ops.logical_and(visible, ops.logical_not(hidden))
    if a.attention_mask is not None:
        allowed = _look_up(a, example, row, column)
        visible = ops.logical_and(visible, allowed)
    return visible


def _band(chunks, left, right):
    """Boolean `[c, S]`: the keys within the window of each row."""
    # No numpy here: `torch.compile` would break the graph at an array.
    row = ops.arange(chunks.size, dtype="int32")[:, None]
    column = ops.arange(chunks.keys, dtype="int32")[None, :]
    distance = row - column + chunks.before * chunks.size
    return within_reach(distance, (left, right))


def _look_up(arguments, example, query_position, key_position):
    """The entries of the attention mask for pairs of positions, O(n w)."""
    length = ops.shape(arguments.query)[1]
    return ordering.look_up(
        arguments.attention_mask,
        example[:, None, None, None],  # [N, 1, 1, 1]
        ops.minimum(query_position, length - 1),
        ops.minimum(key_position, length - 1),
    )


def may_attend_to_nobody(arguments):
    """Whether a real token may be left without any key, not even its own."""
    a = arguments
    return bool(a.hidden_windows) or not (
        a.attention_mask is None and a.hidden_first is None
    )


def mask_of(arguments, position, chunks, example=None):
    """What hides keys from the queries of each chunk.

    Args:
        As of `visible_keys`.

    Returns:
        A bias `[R or 1, t, c*G, S]` for the scores, and whether each query
        attends to something `[R or 1, t, c*G, 1]`, `None` if all real ones do.
    """
    a = arguments
    visible = visible_keys(a, position, chunks, example)
    sees_something = None
    if may_attend_to_nobody(a):
        sees_something = ops.any(visible, axis=-1, keepdims=True)
    elif a.padding_mask is not None:  # a real token attends to itself
        own = chunks.before * chunks.size
        own_position = position[:, :, own : own + chunks.size, None]
        sees_something = own_position != NOWHERE
    bias = softmax.bias_of(visible, softmax.compute_dtype(a.query.dtype))
    return _for_each_query(a, bias), _for_each_query(a, sees_something)


def _for_each_query(arguments, x):
    """`[R, t, c, ...]` as `[R, t, c*G, ...]`; `None` as it is."""
    group = num_groups(arguments)
    return x if x is None or group == 1 else ops.repeat(x, group, axis=2)
