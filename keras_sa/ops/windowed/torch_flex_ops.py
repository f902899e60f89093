"""FlexAttention over slots: the mask of a window, by pairs and by tiles.

Letters: `B` batch, `n` slots, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim, `t` tiles, `m` the most tiles that a tile visits.
"""

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


def attend(query, key, value, order, allowed, problem, with_lse):
    """Attention in slot order.

    Args:
        query: `[B, H, n, D]`.
        key: `[B, K, n, D]`.
        value: `[B, K, n, E]`.
        order: int32 `[B or 1, K or 1, n]` or `None`; see
            `triton_launch.order_of`.
        allowed: boolean `[B or 1, n, n]` in original positions, or `None`.
        problem: `triton_launch.Problem`.
        with_lse: whether the log-sum-exp is wanted.

    Returns:
        `[B, H, n, E]` and the log-sum-exp `[B, H, n]` or `None`.
    """
    p = problem
    run = _on_cpu if query.device.type == "cpu" else _on_gpu
    output = run(
        query,
        key,
        value,
        score_mod=capping(p.logit_soft_cap),
        block_mask=block_mask(p, order, allowed, query.device),
        scale=p.scale,
        enable_gqa=p.num_heads != p.num_key_value_heads,
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


def block_mask(problem, order, allowed, device):
    """The `BlockMask` of a window: O(t m) numbers, whatever the order is."""
    p = problem
    kv_num_blocks, kv_indices = visited_tiles(p, p.left, p.right, device)
    # Who sees a tile: the same window, seen from the other side.
    q_num_blocks, q_indices = visited_tiles(p, p.right, p.left, device)
    # Not `from_kv_blocks`: it finds the other side through a [t, t] matrix.
    return flex.BlockMask(
        seq_lengths=(p.length, p.length),
        kv_num_blocks=kv_num_blocks,
        kv_indices=kv_indices,
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=q_num_blocks,
        q_indices=q_indices,
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=visibility(p, order, allowed),
    )


def visited_tiles(problem, left, right, device):
    """How many tiles each tile visits, int32 `[1, 1, t]`, and which ones,
    `[1, 1, t, t]`, a view of O(t m) numbers."""
    p = problem
    num_tiles = -(-p.length // TILE)
    first_slot = torch.arange(num_tiles, device=device) * TILE
    last_slot = (first_slot + TILE - 1).clamp(max=p.length - 1)
    if p.block_size:
        left = right = p.block_size - 1
        lowest = first_slot // p.block_size * p.block_size
        highest = last_slot // p.block_size * p.block_size + right
    else:
        lowest, highest = first_slot - left, last_slot + right
    first = lowest.clamp(min=0) // TILE
    last = highest.clamp(max=p.length - 1) // TILE
    most = min((TILE + left + right - 2) // TILE + 2, num_tiles)
    tiles = first[:, None] + torch.arange(most, device=device)  # [t, m]
    tiles = tiles.clamp(max=num_tiles - 1)
    # The CPU kernel insists on rows of t entries, though it reads `m` at most:
    # a row may run on into the next ones.
    filler = tiles.new_zeros(num_tiles - most)
    flat = torch.cat([tiles.reshape(-1), filler]).to(torch.int32)
    rows = flat.unfold(0, num_tiles, most)
    return (last - first + 1).to(torch.int32)[None, None], rows[None, None]


def visibility(problem, order, allowed):
    """Whether a query sees a key, by example, query head and slots."""
    left, right = problem.left, problem.right
    block_size, causal = problem.block_size, problem.causal
    exclude_local = problem.exclude_local
    position_of = positions(problem, order)
    one_mask_for_all = allowed is not None and allowed.shape[0] == 1

    def visible(example, head, query_slot, key_slot):
        row = position_of(example, head, query_slot)
        column = position_of(example, head, key_slot)
        if block_size:
            seen = query_slot // block_size == key_slot // block_size
        else:
            seen = within(query_slot - key_slot, left, right)
        if order is not None:  # padding has negative positions
            seen = seen & (row >= 0) & (column >= 0)
        if causal:
            seen = seen & (column <= row)
        if exclude_local is not None:
            seen = seen & ~within(row - column, *exclude_local)
        if allowed is not None:
            which = 0 if one_mask_for_all else example
            seen = seen & allowed[which, row, column]
        return seen

    return visible


def positions(problem, order):
    """Original positions of slots, by example, query head and slot."""
    if order is None:
        return lambda example, head, slot: slot
    group = problem.num_heads // problem.num_key_value_heads
    one_example, one_head = order.shape[0] == 1, order.shape[1] == 1

    def position_of(example, head, slot):
        which = 0 if one_example else example
        return order[which, 0 if one_head else head // group, slot]

    return position_of


def within(distance, left, right):
    return (distance <= left) & (distance >= -right)
