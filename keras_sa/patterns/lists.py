"""Lists of neighbors: checked, made distinct, turned into masks.

Letters: `B` batch, `n` tokens, `K` key/value heads, `T` tokens that attend,
`m` places in a list of neighbors.
"""

import functools

import keras
import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa.patterns import permutation as permutations


def neighbors_of(pattern, length, *, is_causal, seed=0, positions=None, **more):
    """The neighbors that a pattern says, checked; no later ones if causal.

    Args:
        pattern: a `Pattern`.
        length, is_causal, seed, positions: as in `Pattern.neighbors`.
        **more: what only some patterns take, such as routes.

    Returns:
        int32 `[T, m]` or `[K, T, m]`.

    Raises:
        ValueError: for a wrong shape, dtype or position.
    """
    if positions is None:
        positions = ops.arange(length, dtype="int32")
    neighbors = ops.convert_to_tensor(
        pattern.neighbors(
            length,
            is_causal=is_causal,
            seed=seed,
            positions=positions,
            **more,
        )
    )
    _check(pattern, neighbors, positions, length)
    neighbors = ops.cast(neighbors, "int32")
    if not is_causal:
        return neighbors
    return ops.where(neighbors <= positions[:, None], neighbors, -1)


def _check(pattern, neighbors, positions, length):
    received = (
        f"Received: neighbors of {pattern!r} of shape "
        f"{tuple(neighbors.shape)} and dtype "
        f"{keras.backend.standardize_dtype(neighbors.dtype)}, for length "
        f"{length} and {positions.shape[0]} positions"
    )
    rows = neighbors.shape[-2] if len(neighbors.shape) in (2, 3) else -1
    num_positions = positions.shape[0]
    if rows == -1 or (
        None not in (rows, num_positions) and rows != num_positions
    ):
        raise ValueError(
            "`neighbors` is expected to return [T, m] for T positions, or "
            f"[K, T, m] where key/value heads differ. {received}"
        )
    if "int" not in keras.backend.standardize_dtype(neighbors.dtype):
        raise ValueError(
            "`neighbors` is expected to return int32 positions, -1 for nobody. "
            + received
        )
    values = _validation.concrete(neighbors)
    if values is None or not isinstance(length, int) or not values.size:
        return
    if values.min() < -1 or values.max() >= length:
        raise ValueError(
            f"`neighbors` is expected to return positions below length={length}"
            ", and -1 for nobody: put -1 where there is no such token. "
            f"{received}, from {values.min()} to {values.max()}"
        )


def given(**keywords):
    """The keywords that are not `None`."""
    return {k: v for k, v in keywords.items() if v is not None}


def distinct(neighbors):
    """The same keys `[..., m]`, each once."""
    if neighbors.shape[-1] == 1:
        return neighbors
    neighbors = ops.sort(neighbors, axis=-1)
    is_again = neighbors[..., 1:] == neighbors[..., :-1]
    others = ops.where(is_again, -1, neighbors[..., 1:])
    return ops.concatenate([neighbors[..., :1], others], axis=-1)


def together(parts):
    """Lists `[..., T, m]` side by side, each key once; some may have an axis
    of heads before `T`."""
    if len(parts) == 1:
        return parts[0]
    rank = max(len(part.shape) for part in parts)
    if rank > 2:
        heads = max(x.shape[-3] for x in parts if len(x.shape) == rank)
        parts = [_for_heads(x, rank, heads) for x in parts]
    return distinct(ops.concatenate(parts, axis=-1))


def _for_heads(x, rank, heads):
    """`[..., H, T, m]`, where a key/value head is that of several query
    heads."""
    x = x if len(x.shape) == rank else ops.expand_dims(x, -3)
    return ops.repeat(x, heads // x.shape[-3], axis=-3)


def mask_of_neighbors(neighbors, length):
    """Boolean `[..., T, n]` of int32 `[..., T, m]`."""
    shape = ops.shape(neighbors)
    rows = ops.reshape(neighbors, (-1, shape[-1]))
    num_rows = ops.shape(rows)[0]
    column = ops.where(rows < 0, length, rows)  # one column more, for nobody
    place = column + permutations.starts(num_rows, length + 1)
    place = ops.reshape(place, (-1, 1))
    mask = ops.scatter_update(
        ops.zeros((num_rows * (length + 1),), dtype="int32"),
        place,
        ops.ones_like(place[:, 0]),
    )
    mask = ops.reshape(mask, (*shape[:-1], length + 1))
    return ops.cast(mask[..., :length], "bool")


def neighbors_by_rank(neighbors, padding_mask):
    """Neighbors between ranks as neighbors between tokens, of which some are
    padding.

    Args:
        neighbors: int32 `[n, m]` or `[K, n, m]`.
        padding_mask: boolean `[B, n]`.

    Returns:
        int32 `[B, n, m]` or `[B, K, n, m]`.
    """
    if len(neighbors.shape) == 3:
        heads = ops.unstack(neighbors, axis=0)
        heads = [neighbors_by_rank(x, padding_mask) for x in heads]
        return ops.stack(heads, axis=1)
    batch_size, length = ops.shape(padding_mask)
    token = ops.arange(length, dtype="int32")
    token = permutations.padding_last(token, padding_mask)  # by rank [B, n]
    rank = permutations.valid_ranks(padding_mask)
    neighbor = ops.take(neighbors, rank, axis=0)  # [B, n, m]
    num_real = ops.sum(ops.cast(padding_mask, "int32"), axis=1)
    visible = ops.logical_and(neighbor >= 0, neighbor < num_real[:, None, None])
    visible = ops.logical_and(visible, padding_mask[:, :, None])
    place = permutations.starts(batch_size, length)[:, :, None]
    place = place + ops.where(visible, neighbor, 0)
    neighbor = ops.take(ops.reshape(token, (-1,)), place, axis=0)
    return ops.where(visible, neighbor, -1)


def between_real(neighbors, padding_mask):
    """Neighbors `[B, n, m]` or `[B, K, n, m]` without those of or to padding,
    given by `padding_mask` `[B, n]`."""
    batch_size, length = ops.shape(padding_mask)
    asks = padding_mask[..., None]  # [B, n, 1]
    start = permutations.starts(batch_size, length)[..., None]
    if len(neighbors.shape) == 4:
        asks, start = asks[:, None], start[:, None]
    place = ops.maximum(neighbors, 0) + start
    real = ops.take(ops.reshape(padding_mask, (-1,)), place, axis=0)
    visible = ops.logical_and(neighbors >= 0, ops.logical_and(real, asks))
    return ops.where(visible, neighbors, -1)


def padding_pairs(padding_mask):
    """Boolean `[B, n, n]`: both the row and the column are real tokens."""
    return ops.logical_and(padding_mask[:, :, None], padding_mask[:, None, :])


def with_padding(mask, padding_mask):
    """A mask `[n, n]`, `[B, n, n]` or `[B, K, n, n]` between real tokens."""
    if padding_mask is None:
        return mask
    pairs = padding_pairs(padding_mask)
    if len(mask.shape) == 4:
        pairs = pairs[:, None]
    return ops.logical_and(mask, pairs)


def any_of(masks):
    """True where one of the masks is; they may have an axis of heads."""
    rank = max(len(mask.shape) for mask in masks)
    if rank > 2:
        masks = [
            x if len(x.shape) == rank else x[..., None, :, :] for x in masks
        ]
        heads = max(mask.shape[-3] or 0 for mask in masks)
        masks = [_of_heads(mask, heads) for mask in masks]
    return functools.reduce(ops.logical_or, masks)


def _of_heads(mask, heads):
    """A key/value head is that of several query heads; one is broadcast."""
    if mask.shape[-3] in (None, 1, heads):
        return mask
    return ops.repeat(mask, heads // mask.shape[-3], axis=-3)


def causal(length):
    """Boolean `[n, n]`: column j is not later than row i."""
    position = ops.arange(length, dtype="int32")
    return position[None, :] <= position[:, None]


def as_numpy(neighbors):
    return np.asarray(ops.convert_to_numpy(neighbors))
