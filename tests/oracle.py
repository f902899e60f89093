"""Attention under a mask, with its gradients by hand, in numpy alone.

It stands for what the package computes: nothing of it, nor of Keras, is here.
"""

import numpy as np


def attend_in_numpy(
    tensors,
    mask,
    output_weight,
    lse_weight,
    *,
    padding_mask=None,
    scale=None,
    attn_logits_soft_cap=None,
):
    """Attention and the gradients of a weighted sum of what it returns.

    Args:
        tensors: dict with query `[B, n, H, D]`, key `[B, n, K, D]`, value
            `[B, n, K, E]` and perhaps sinks `[H]`, in the dtype to compute in.
        mask: boolean `[B, H, n, n]`: who attends to whom.
        output_weight: `[B, n, H, E]`, of the outputs in the sum.
        lse_weight: `[B, n, H]`, of the finite log-sum-exps in the sum.
        padding_mask: boolean `[B, n]`: real tokens, or `None`. Padding has a
            log-sum-exp of -inf with sinks too.
        scale: factor on the scores; `None` for `D ** -0.5`.
        attn_logits_soft_cap: the cap of the scores, or `None`.

    Returns:
        Output `[B, n, H, E]`, log-sum-exp `[B, n, H]`, and a dict of gradients.
        A row that attends to nobody has output 0 and log-sum-exp -inf.
    """
    query, dtype = tensors["query"], tensors["query"].dtype
    num_kv_heads = tensors["key"].shape[2]
    group = query.shape[2] // num_kv_heads
    if scale is None:
        scale = query.shape[3] ** -0.5
    key, value = (np.repeat(tensors[k], group, 2) for k in ("key", "value"))
    scores = np.einsum("bihd,bjhd->bhij", query, key) * scale
    slope = np.ones_like(scores)
    if attn_logits_soft_cap is not None:
        capped = np.tanh(scores / attn_logits_soft_cap)
        scores, slope = attn_logits_soft_cap * capped, 1 - capped**2
    sink = np.full(scores.shape[:3], -np.inf, dtype)
    if "sinks" in tensors:
        sink[:] = tensors["sinks"][None, :, None]
        if padding_mask is not None:
            sink = np.where(padding_mask[:, None], sink, -np.inf)
    scores = np.where(mask, scores, -np.inf)
    highest = np.maximum(scores.max(-1, initial=-np.inf), sink)
    safe = np.where(np.isfinite(highest), highest, 0).astype(dtype)
    exp, exp_sink = np.exp(scores - safe[..., None]), np.exp(sink - safe)
    total = exp.sum(-1) + exp_sink
    something = total > 0
    divisor = np.where(something, total, 1)
    weights, of_sink = exp / divisor[..., None], exp_sink / divisor
    lse = np.where(something, safe + np.log(divisor), -np.inf)  # [B, H, n]
    output = np.einsum("bhij,bjhe->bihe", weights, value)
    upstream = np.einsum("bihe,bjhe->bhij", output_weight, value)
    of_lse = np.where(something, lse_weight.transpose(0, 2, 1), 0)
    rest = of_lse - (weights * upstream).sum(-1)
    of_scores = weights * (upstream + rest[..., None]) * slope * scale
    gradients = {
        "query": np.einsum("bhij,bjhd->bihd", of_scores, key),
        "key": np.einsum("bhij,bihd->bjhd", of_scores, query),
        "value": np.einsum("bhij,bihe->bjhe", weights, output_weight),
    }
    for name in ("key", "value"):
        batch, length, _, dim = gradients[name].shape
        shape = (batch, length, num_kv_heads, group, dim)
        gradients[name] = gradients[name].reshape(shape).sum(3)
    if "sinks" in tensors:
        gradients["sinks"] = (of_sink * rest).sum((0, 2))
    return output, lse.transpose(0, 2, 1), gradients
