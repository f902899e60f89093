"""Windowed attention in `keras.ops`, for every backend: O(n w), no n x n.

Slots are cut in chunks. The queries of a chunk meet the keys of their own
chunk and of the neighbors that the window reaches, under one small mask.

Letters: as in `chunked.py`.
"""

import keras
from keras import ops

from keras_sa.ops.windowed import chunked
from keras_sa.ops.windowed import common

# On TensorFlow, heads are parted as long as a part has as many bytes of scores.
PART_BYTES = 3 * 2**20
MOST_PARTS = 8


def why_not(arguments):
    """The portable path does everything."""
    return None


def forward(arguments):
    return chunked.attend_in_slot_order(_attend_in_parts, arguments)


def _attend_in_parts(arguments, chunks, query, key, value, position):
    """All chunks as one batch: O(n w) scores. Some rows after the others,
    where that is faster."""
    rows = {
        "query": query,
        "key": key,
        "value": value,
        "position": position,
        "example": chunked.example_of_row(arguments),
        "sinks": chunked.sinks_of_row(arguments),
    }
    num_parts = _num_parts(arguments)
    if num_parts == 1:
        return chunked.attend_rows(arguments, chunks, **rows)
    mask = None
    if position.shape[0] == 1:  # one for all
        mask = common.mask_of(
            arguments,
            common.positions_with_neighbors(rows.pop("position"), chunks),
            chunks,
        )
    parts = [
        chunked.attend_rows(arguments, chunks, mask=mask, **part)
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
        most = min(common.bytes_of_all_scores(arguments) // PART_BYTES, most)
    num_rows = (batch_size or 1) * num_kv_heads
    return max(x for x in range(1, max(most, 1) + 1) if num_rows % x == 0)


def _split(rows, num_parts):
    """A dict of tensors `[N, ...]` or `None` as such dicts of some rows."""
    tensors = {k: v for k, v in rows.items() if v is not None}
    parts = [ops.split(x, num_parts, axis=0) for x in tensors.values()]
    return [dict(zip(tensors, part)) for part in zip(*parts)]
