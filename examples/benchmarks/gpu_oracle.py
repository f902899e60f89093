"""Masked attention over all pairs in float64, some rows at a time.

The reference of `gpu.py`: plain torch, on the GPU, its masks written anew from
the words of `docs/semantics.md` and not from the package.

Letters: `B` batch, `n` tokens, `r` tokens whose rows are computed, `H` query
heads, `K` key/value heads, `D` head dim, `E` value head dim, `w` window.
"""

import math

import numpy as np
import torch

# Largest error relative to the largest number: of output and log-sum-exp, and
# of gradients.
BOUNDS = {
    "float32": (2e-6, 5e-6),
    "float16": (2e-3, 4e-3),
    "bfloat16": (2e-2, 2e-2),
}
# Long sums in float32 need more than the bounds above: as much as the dense
# computation's own error in that dtype, some times over.
OWN_ERRORS = 4


def case_visibility(
    case, permutation=None, padding_mask=None, device="cpu", hidden_first=None
):
    """Who attends to whom: a function of tokens `[r]` to booleans
    `[.., H, r, n]`.

    Args:
        case: `tests.testing.Case`.
        permutation: numpy `[n]`, `[B, n]` or `[B or 1, K, n]`, or `None` for
            a sliding window.
        padding_mask: boolean numpy `[B, n]` or `None`.
        device: where the masks are made.
        hidden_first: int, or int numpy `[B]`, or `None`.
    """
    slots = torch.as_tensor(
        _slots(case, permutation, padding_mask), device=device
    )
    real = None
    if padding_mask is not None:
        real = torch.as_tensor(padding_mask, device=device)
    everyone = torch.arange(case.length, device=device)
    is_sliding = permutation is None
    before, after = _reach(case.window, is_sliding and case.is_causal)
    hidden_windows = list(case.hidden_windows)
    if case.exclude_local is not None:
        reach = _reach(case.exclude_local, case.is_causal)
        hidden_windows.append((*reach, 1))

    def visible(tokens):
        distance = tokens[:, None] - everyone  # [r, n]
        mine = slots[..., tokens][..., :, None]  # [B or 1, H or 1, r, 1]
        others = slots[..., None, :]
        if case.neighborhood == "block":
            size = min(case.window, case.length)
            mask = mine // size == others // size
        else:
            mask = _is_within(
                mine - others,
                (before * case.dilation, after * case.dilation),
                case.dilation,
            )
        if case.is_causal:
            mask = mask & (distance >= 0)
        for back, front, dilation in hidden_windows:
            mask = mask & ~_is_within(distance, (back, front), dilation)
        if hidden_first is not None:
            first = torch.as_tensor(hidden_first, device=device)
            mask = mask & (everyone >= first.reshape(-1, 1, 1, 1))
        if real is not None:
            pairs = real[:, tokens][:, :, None] & real[:, None, :]
            mask = mask & pairs[:, None]
        return mask

    return visible


def _is_within(distance, reach, dilation):
    """Whether a distance is a multiple of the dilation, within `(left,
    right)`."""
    left, right = reach
    is_within = (distance <= left) & (distance >= -right)
    return is_within & (distance % dilation == 0)


def _reach(window, is_one_sided):
    if is_one_sided:
        return window - 1, 0
    return window // 2, (window - 1) // 2


def _slots(case, permutation, padding_mask):
    """The slot of each token, `[B or 1, H or 1, n]`; padding comes last."""
    if permutation is None:
        return np.arange(case.length)[None, None]
    order = np.asarray(permutation)
    order = order.reshape((1,) * (3 - order.ndim) + order.shape)
    if permutation.ndim == 2:
        order = np.swapaxes(order, 0, 1)  # [B, 1, n]
    if padding_mask is not None:
        batch = padding_mask.shape[0]
        order = np.broadcast_to(order, (batch, *order.shape[1:]))
        is_padding = np.stack(
            [~mask[rows] for mask, rows in zip(padding_mask, order)]
        )
        last = np.argsort(is_padding, axis=-1, kind="stable")
        order = np.take_along_axis(order, last, axis=-1)
    slots = np.argsort(order, axis=-1, kind="stable")
    if slots.shape[1] > 1:
        slots = np.repeat(slots, case.heads // case.kv_heads, axis=1)
    return slots


def full_visibility(length, device):
    """Every token attends to itself and all before it."""
    everyone = torch.arange(length, device=device)
    return lambda tokens: (tokens[:, None] >= everyone)[None, None]


def union(first, second):
    """Who is visible by either of two."""
    return lambda tokens: first(tokens) | second(tokens)


def exact_attention(
    query,
    key,
    value,
    visible,
    *,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    real=None,
    dtype=torch.float64,
    tokens=None,
    weights=None,
    rows=256,
):
    """Output and log-sum-exp of some tokens, and the gradients of a loss.

    Args:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`.
        value: `[B, n, K, E]`.
        visible: see `case_visibility`.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: `c` of `c * tanh(score / c)`, or `None`.
        sinks: `[H]` or `None`.
        real: boolean `[B, n]` or `None`; padding has no sink.
        dtype: of the computation.
        tokens: int64 `[r]`; default: all.
        weights: `None` for no gradients, or the pair of weights `[B, n, H, E]`
            and `[B, n, H]` (or `None`) of output and log-sum-exp in the loss.
        rows: tokens at a time.

    Returns:
        output `[B, r, H, E]`, log-sum-exp `[B, r, H]`, and the gradients of
        query, key, value and sinks by name (empty without `weights`).
    """
    names = ("query", "key", "value", "sinks")
    inputs = {
        name: x.detach().to(dtype).requires_grad_(weights is not None)
        for name, x in zip(names, (query, key, value, sinks))
        if x is not None
    }
    if tokens is None:
        tokens = torch.arange(query.shape[1], device=query.device)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    outputs, lses = [], []
    gradients = {name: torch.zeros_like(x) for name, x in inputs.items()}
    for part in tokens.split(rows):
        output, lse = _attend(
            part, inputs, visible, scale, attn_logits_soft_cap, real
        )
        if weights is not None:
            loss = _loss(output, lse, part, weights)
            found = torch.autograd.grad(loss, list(inputs.values()))
            for name, gradient in zip(inputs, found):
                gradients[name] += gradient
        outputs.append(output.detach())
        lses.append(lse.detach())
    if weights is None:
        gradients = {}
    return torch.cat(outputs, 1), torch.cat(lses, 1), gradients


def _attend(tokens, inputs, visible, scale, attn_logits_soft_cap, real):
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    group = query.shape[2] // key.shape[2]
    key, value = (x.repeat_interleave(group, dim=2) for x in (key, value))
    scores = torch.einsum("bihd,bjhd->bhij", query[:, tokens], key) * scale
    if attn_logits_soft_cap is not None:
        scores = attn_logits_soft_cap * torch.tanh(
            scores / attn_logits_soft_cap
        )
    scores = scores.masked_fill(~visible(tokens), -math.inf)
    sinks = inputs.get("sinks")
    if sinks is not None:
        sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        if real is not None:
            sink = sink.masked_fill(
                ~real[:, tokens][:, None, :, None], -math.inf
            )
        scores = torch.cat([scores, sink], -1)
    # A row without a key: the gradient of its log-sum-exp would be NaN.
    empty = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    lse = scores.logsumexp(-1, keepdim=True)
    shares = (scores - lse).exp().masked_fill(empty, 0.0)
    if sinks is not None:
        shares = shares[..., :-1]
    output = torch.einsum("bhij,bjhe->bihe", shares, value)
    lse = lse.masked_fill(empty, -math.inf)[..., 0].transpose(1, 2)
    return output, lse


def _loss(output, lse, tokens, weights):
    of_output, of_lse = weights
    loss = (output * of_output[:, tokens].to(output.dtype)).sum()
    if of_lse is not None:
        finite = torch.where(torch.isfinite(lse), lse, 0.0)
        loss = loss + (finite * of_lse[:, tokens].to(lse.dtype)).sum()
    return loss


def relative_error(actual, exact):
    """Largest error over the largest number (at least 1); inf if they differ
    in what is infinite."""
    actual, exact = actual.double(), exact.double()
    finite = torch.isfinite(exact)
    if not torch.equal(actual[~finite], exact[~finite]):
        return math.inf
    if not finite.any():
        return 0.0
    largest = exact[finite].abs().max().clamp(min=1.0)
    error = ((actual[finite] - exact[finite]).abs().max() / largest).item()
    return math.inf if math.isnan(error) else error


def is_within(error, own_error, dtype, is_gradient):
    """Whether an error is within the bounds; `own_error` is that of the dense
    computation in float32, rounded to the dtype."""
    bound = max(BOUNDS[dtype][is_gradient], OWN_ERRORS * own_error)
    return error <= bound
