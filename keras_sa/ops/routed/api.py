"""Mixture of block attention (MoBA): each query chooses the blocks it reads.

A token reads its own block and the best `top_k - 1` other blocks by the dot
product of its query with the mean key of the block. Queries that chose the
same block are packed in tiles, so that every tile is one small dense product:
O(n k b) work for blocks of b tokens, and no n x n tensor.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads,
`G = H / K`, `N = B * K`, `D` head dim, `E` value head dim, `b` tokens in a
block, `c` blocks of a sequence, `r = top_k - 1` routed blocks,
`M = N * n * G * r` pairs of a query and a block, `t` tiles, `T` pairs in a
tile.
"""

import functools

import keras
from keras import ops

from keras_sa import _validation
from keras_sa.ops import ordering
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.inputs import empty_attention
from keras_sa.ops.routed.attend import attend_to_tiles
from keras_sa.ops.routed.parts import divide
from keras_sa.ops.routed.parts import own_part
from keras_sa.ops.routed.parts import routed_parts
from keras_sa.ops.routed.routing import choose_blocks
from keras_sa.ops.routed.slots import Slots
from keras_sa.ops.routed.tiles import Tiles


def block_routed_attention(
    query,
    key,
    value,
    *,
    block_size,
    top_k,
    is_causal=False,
    padding_mask=None,
    attention_mask=None,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    return_lse=False,
    dropout=0.0,
    dropout_seed=None,
    implementation=None,
):
    """Attention to a token's own block and the blocks that its query chooses.

    Blocks are counted over the real tokens of each example, so padding
    changes nothing. The choice has no gradient; the attention has.

    Args:
        query: `[B, n, H, D]`, any float dtype.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        block_size: int >= 1, tokens in a block.
        top_k: int >= 1, blocks that a token reads, its own included.
        is_causal: whether a token attends to no later token. It then chooses
            among past blocks, and its own block is masked causally.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. Nobody
            attends to padding, and its output is 0.
        attention_mask: optional `[B or 1, n, n]`, true or 1 where a row may
            attend to a column, in addition. It does not change the choice.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: optional `c`: scores become `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        return_lse: whether to return the log-sum-exp of the scores as well.
        dropout: rate of dropout on the attention weights.
        dropout_seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` or "portable".

    Returns:
        `[B, n, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, n, H]`, float32 at least.

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> keras_sa.ops.block_routed_attention(
    ...     x, x, x, block_size=16, top_k=3, is_causal=True
    ... ).shape
    (2, 100, 4, 16)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """
    _validation.check_positive_int("block_size", block_size)
    _validation.check_positive_int("top_k", top_k)
    _validation.check_one_of(
        "implementation", implementation, (None, "portable")
    )
    inputs = check_inputs(
        query,
        key,
        value,
        is_causal=is_causal,
        padding_mask=padding_mask,
        attention_mask=attention_mask,
        scale=scale,
        attn_logits_soft_cap=attn_logits_soft_cap,
        sinks=sinks,
        return_lse=return_lse,
        dropout=dropout,
        dropout_seed=dropout_seed,
    )
    return attend_to_blocks(inputs, block_size=block_size, top_k=top_k)


def attend_to_blocks(inputs, *, block_size, top_k):
    """`block_routed_attention` of checked `Inputs`."""
    if inputs.is_empty:
        return empty_attention(inputs)
    i = inputs
    slots = Slots(i.key, block_size, i.padding_mask)
    rows = [slots.heads(x) for x in (i.query, i.key, i.value)]
    parts = _parts(i, slots, rows, top_k)
    output, lse = divide(parts, slots, i.sinks)
    shape = (slots.batch_size, slots.length, i.query.shape[2])
    output = ops.reshape(slots.restore(output), (*shape, i.value.shape[3]))
    output = ops.cast(output, i.value.dtype)
    output = ordering.zero_padding(output, i.padding_mask)
    if not i.return_lse:
        return output
    lse = ops.reshape(slots.restore(lse), shape)
    if i.padding_mask is not None:
        lse = ops.where(i.padding_mask[:, :, None], lse, -float("inf"))
    return output, lse


def _parts(inputs, slots, rows, top_k):
    """The parts of one softmax: the own block, and each routed one."""
    i = inputs
    group = i.query.shape[2] // i.key.shape[2]
    masks = (i.is_causal, i.attention_mask)
    attend = functools.partial(
        attend_to_tiles,
        scale=i.scale,
        attn_logits_soft_cap=i.attn_logits_soft_cap,
    )
    drop, seed = None, i.dropout_seed
    if i.dropout:
        drop = functools.partial(
            keras.random.dropout, rate=i.dropout, seed=seed
        )
    own = own_part(rows, slots, group, *masks, drop, attend)
    if top_k == 1:
        return [own]
    choices = choose_blocks(*rows[:2], slots, group, top_k, i.is_causal)
    tiles = Tiles.pack(choices, slots)
    if isinstance(seed, int):
        seed = seed + 1  # the own blocks took the numbers of `seed`
    if i.dropout:
        drop = tiles.dropout(i.dropout, seed, slots.block_size)
    return [
        own,
        *routed_parts(rows, slots, group, tiles, *masks, drop, attend),
    ]


def route_to_blocks(
    query, key, *, block_size, top_k, is_causal=False, padding_mask=None
):
    """The blocks that each query of `block_routed_attention` reads.

    Args:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`; `K` divides `H`.
        block_size, top_k, causal, padding_mask: as in
            `block_routed_attention`.

    Returns:
        int32 `[B, n, H, top_k]`: the own block, then the others, best first;
        -1 where there are no more to choose.

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> keras_sa.ops.route_to_blocks(x, x, block_size=16, top_k=3).shape
    (2, 100, 4, 3)

    Reference:
        MoBA, https://arxiv.org/abs/2502.13189
    """
    block_size = _validation.check_positive_int("block_size", block_size)
    top_k = _validation.check_positive_int("top_k", top_k)
    query, key = (ops.convert_to_tensor(x) for x in (query, key))
    _validation.check_qkv(query, key, key)
    padding_mask = _validation.check_padding_mask(
        padding_mask, *query.shape[:2]
    )
    if 0 in query.shape[:2]:
        return ops.zeros((*ops.shape(query)[:3], top_k), dtype="int32")
    slots = Slots(key, block_size, padding_mask)
    num_heads, num_kv_heads = query.shape[2], key.shape[2]
    group = num_heads // num_kv_heads
    blocks = ops.broadcast_to(
        slots.own_block()[None, :, None, None], slots.shape(group, 1)
    )  # [N, n, G, 1]
    if top_k > 1:
        rows = (slots.heads(query), slots.heads(key))
        chosen, is_choice = choose_blocks(*rows, slots, group, top_k, is_causal)
        chosen = ops.where(is_choice, chosen, -1)
        blocks = ops.concatenate([blocks, chosen], axis=-1)
    # Floats, which hold any number of blocks: rows of features are gathered.
    blocks = ops.reshape(
        ops.cast(blocks, "float32"), slots.shape(group * top_k)
    )
    shape = (-1, slots.length, num_heads, top_k)
    return ops.cast(ops.reshape(slots.restore(blocks), shape), "int32")


def routed_blocks(
    query, key, *, block_size, top_k, is_causal, padding_mask=None
):
    """Boolean `[B, n, H, c]`: the blocks each query reads, its own included.

    Args: as in `route_to_blocks`.
    """
    blocks = route_to_blocks(
        query,
        key,
        block_size=block_size,
        top_k=top_k,
        is_causal=is_causal,
        padding_mask=padding_mask,
    )
    num_blocks = (ops.shape(key)[1] + block_size - 1) // block_size
    return ops.any(ops.one_hot(blocks, num_blocks) > 0, axis=3)
