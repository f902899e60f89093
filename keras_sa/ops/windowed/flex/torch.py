"""FlexAttention over slots: the mask of a window, by pairs and by tiles.

Letters: `B` batch, `n` slots, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim, `t` tiles, `m` the most tiles that a tile visits.
"""

import dataclasses

import torch
from torch.nn.attention import flex_attention as flex

TILE = 128  # slots; what the kernels of FlexAttention are made for
# With `fullgraph`, a recompilation too many raises; without, it would run the
# eager function, which holds n x n scores.
_on_gpu = torch.compile(flex.flex_attention, fullgraph=True)
# Unknown sizes can make C++ that does not compile: the kernel's own variables
# are put in by replacing "ks1", also where that is the beginning of "ks18".
_compiled = torch.compile(flex.flex_attention, fullgraph=True, dynamic=False)


def _on_cpu(*tensors, **arguments):
    # Compiled, the view of a tensor that requires gradients looks as if it did
    # too, even where gradients are off.
    return _compiled(*(x.detach() for x in tensors), **arguments)


@dataclasses.dataclass(frozen=True)
class Window:
    """What a mask depends on besides tensors.

    Attributes:
        length: `n`.
        group: query heads per key/value head.
        left: slots that a token attends to before its own.
        right: slots that a token attends to after its own.
        block_size: slots in a block, 0 for a window.
        is_causal: whether a token attends to no later original position.
        hidden_windows: as in `WindowedArguments`.
    """

    length: int
    group: int
    left: int
    right: int
    block_size: int
    is_causal: bool
    hidden_windows: tuple


def window_of(arguments):
    """The `Window` of `WindowedArguments`."""
    a = arguments
    return Window(
        length=a.query.shape[1],
        group=a.query.shape[2] // a.key.shape[2],
        left=a.left,
        right=a.right,
        block_size=a.window_size if a.neighborhood == "block" else 0,
        is_causal=a.is_causal,
        hidden_windows=a.hidden_windows,
    )


def attend(
    query,
    key,
    value,
    order,
    allowed,
    hidden_first,
    window,
    *,
    scale,
    soft_cap,
    with_lse,
):
    """Attention in slot order.

    Args:
        query: `[B, H, n, D]`.
        key: `[B, K, n, D]`.
        value: `[B, K, n, E]`.
        order: int32 `[B or 1, K or 1, n]` or `None`; see
            `common.order_of`.
        allowed: boolean `[B or 1, n, n]` in original positions, or `None`.
        hidden_first: int, int32 `[B]` or `None`.
        window: `Window`.
        scale: factor on the scores.
        soft_cap: `c` of `c * tanh(score / c)`, or `None`.
        with_lse: whether the log-sum-exp is wanted.

    Returns:
        `[B, H, n, E]` and the log-sum-exp `[B, H, n]` or `None`.
    """
    run = _on_cpu if query.device.type == "cpu" else _on_gpu
    output = run(
        query,
        key,
        value,
        score_mod=capping(soft_cap),
        block_mask=block_mask(
            window, order, allowed, hidden_first, query.device
        ),
        scale=scale,
        enable_gqa=window.group > 1,
        return_aux=flex.AuxRequest(lse=True) if with_lse else None,
    )
    return (output[0], output[1].lse) if with_lse else (output, None)


def capping(soft_cap):
    """A function of scores, or `None` where nothing caps them."""
    if soft_cap is None:
        return None

    def cap(score, example, head, query_slot, key_slot):
        return soft_cap * torch.tanh(score / soft_cap)

    return cap


def block_mask(window, order, allowed, hidden_first, device):
    """The `BlockMask` of a window: O(t m) numbers, whatever the order is."""
    w = window
    kv_num_blocks, kv_indices = visited_tiles(w, w.left, w.right, device)
    # Who attends to a tile: the same window, from the other side.
    q_num_blocks, q_indices = visited_tiles(w, w.right, w.left, device)
    # Not `from_kv_blocks`: it finds the other side through a [t, t] matrix.
    return flex.BlockMask(
        seq_lengths=(w.length, w.length),
        kv_num_blocks=kv_num_blocks,
        kv_indices=kv_indices,
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=q_num_blocks,
        q_indices=q_indices,
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=visibility(w, order, allowed, hidden_first),
    )


def visited_tiles(window, left, right, device):
    """How many tiles each tile visits, int32 `[1, 1, t]`, and which ones,
    `[1, 1, t, t]`, a view of O(t m) numbers."""
    w = window
    num_tiles = -(-w.length // TILE)
    first_slot = torch.arange(num_tiles, device=device) * TILE
    last_slot = (first_slot + TILE - 1).clamp(max=w.length - 1)
    if w.block_size:
        left = right = w.block_size - 1
        lowest = first_slot // w.block_size * w.block_size
        highest = last_slot // w.block_size * w.block_size + right
    else:
        lowest, highest = first_slot - left, last_slot + right
    first = lowest.clamp(min=0) // TILE
    last = highest.clamp(max=w.length - 1) // TILE
    most = min((TILE + left + right - 2) // TILE + 2, num_tiles)
    tiles = first[:, None] + torch.arange(most, device=device)  # [t, m]
    tiles = tiles.clamp(max=num_tiles - 1)
    # The CPU kernel insists on rows of t entries, though it reads `m` at most:
    # a row may run on into the next ones.
    filler = tiles.new_zeros(num_tiles - most)
    flat = torch.cat([tiles.reshape(-1), filler]).to(torch.int32)
    rows = flat.unfold(0, num_tiles, most)
    return (last - first + 1).to(torch.int32)[None, None], rows[None, None]


def visibility(window, order, allowed, hidden_first):
    """Whether a query attends to a key, by example, query head and slots."""
    left, right, block_size = window.left, window.right, window.block_size
    is_causal, hidden_windows = window.is_causal, window.hidden_windows
    position_of = positions(window, order)
    one_mask_for_all = allowed is not None and allowed.shape[0] == 1
    one_row_for_all = allowed is not None and allowed.shape[1] == 1
    first_of = threshold(hidden_first)

    def visible(example, head, query_slot, key_slot):
        row = position_of(example, head, query_slot)
        column = position_of(example, head, key_slot)
        if block_size:
            seen = query_slot // block_size == key_slot // block_size
        else:
            seen = within(query_slot - key_slot, left, right)
        if order is not None:  # padding has negative positions
            seen = seen & (row >= 0) & (column >= 0)
        if is_causal:
            seen = seen & (column <= row)
        if first_of is not None:
            seen = seen & (column >= first_of(example))
        for hidden_left, hidden_right, dilation in hidden_windows:
            hidden = within(row - column, hidden_left, hidden_right)
            if dilation > 1:
                hidden = hidden & ((row - column) % dilation == 0)
            seen = seen & ~hidden
        if allowed is not None:
            which = 0 if one_mask_for_all else example
            of_row = 0 if one_row_for_all else row
            seen = seen & allowed[which, of_row, column]
        return seen

    return visible


def threshold(hidden_first):
    """The first position that is not hidden, by example; or `None`."""
    if hidden_first is None:
        return None
    if isinstance(hidden_first, int):
        return lambda example: hidden_first
    return lambda example: hidden_first[example]


def positions(window, order):
    """Original positions of slots, by example, query head and slot."""
    if order is None:
        return lambda example, head, slot: slot
    group = window.group
    one_example, one_head = order.shape[0] == 1, order.shape[1] == 1

    def position_of(example, head, slot):
        which = 0 if one_example else example
        return order[which, 0 if one_head else head // group, slot]

    return position_of


def within(distance, left, right):
    return (distance <= left) & (distance >= -right)
