"""Attention of tiles to blocks on CPUs, some tiles at a time.

What is as large as the scores lives in a cache for a moment: written to memory
and kept for the gradient it takes longer than computing it again.

Letters: as in `tiled_attention.py`.
"""

import math

import torch

from keras_sa.ops import torch_tracing

# Exponentials with base 2 are several times faster than those with base e,
# which take as long again where they underflow.
_LN2 = math.log(2)
# Scores at a time: 1 MB of float32.
_SCORES = 2**18


def takes(query, row):
    """Not where a graph is recorded, which would have every step in it."""
    return (
        query.device.type == "cpu"
        and not torch_tracing.is_tracing()
        and not torch_tracing.is_transforming()
    )


def attend(query, key, value, row, block, visible):
    """As `tiled_attention.attend_to_tiles`.

    Args:
        query: `[L, D]`, times the scale.
    """
    bias = None
    if visible is not None:  # a sum is faster than a choice
        bias = torch.zeros(visible.shape, dtype=query.dtype)
        bias.masked_fill_(~visible, torch.finfo(query.dtype).min / 2)
    highest, total, weighted = _Attend.apply(
        query / _LN2, key, value, row.long(), block.long(), bias
    )
    return highest * _LN2, total, weighted


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, row, block, bias):
        highest = query.new_empty((*row.shape, 1))
        total = query.new_empty((*row.shape, 1))
        weighted = query.new_empty((*row.shape, value.shape[2]))
        for some in _slices(row, key):
            scores = _scores(
                _take_rows(query, row[some]),
                key.index_select(0, block[some]),
                bias,
                some,
            )
            highest[some] = _highest(scores, bias)
            weights = scores.sub_(highest[some]).exp2_()
            torch.sum(weights, -1, keepdim=True, out=total[some])
            values = value.index_select(0, block[some])
            torch.bmm(weights, values, out=weighted[some])
        ctx.save_for_backward(query, key, value, row, block, bias, highest)
        ctx.mark_non_differentiable(highest)
        return highest, total, weighted

    @staticmethod
    def backward(ctx, _, total_grad, weighted_grad):
        query, key, value, row, block, bias, highest = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to have a gradient
            sums = _attend_at_once(query, key, value, row, block, bias, highest)
            gradients = torch.autograd.grad(
                sums,
                (query, key, value),
                (total_grad, weighted_grad),
                create_graph=True,
            )
            return *gradients, None, None, None
        gradients = [torch.zeros_like(x) for x in (query, key, value)]
        query_grad, key_grad, value_grad = gradients
        for some in _slices(row, key):
            queries = _take_rows(query, row[some])
            keys, values = (
                x.index_select(0, block[some]) for x in (key, value)
            )
            scores = _scores(queries, keys, bias, some)
            weights = scores.sub_(highest[some]).exp2_()
            of_values = weights.mT @ weighted_grad[some]
            value_grad.index_add_(0, block[some], of_values)
            of_scores = weighted_grad[some] @ values.mT
            of_scores.add_(total_grad[some]).mul_(weights)
            of_queries = (of_scores @ keys).flatten(0, 1)
            query_grad.index_add_(0, row[some].flatten(), of_queries)
            key_grad.index_add_(0, block[some], of_scores.mT @ queries)
        query_grad.mul_(_LN2)
        key_grad.mul_(_LN2)
        return *gradients, None, None, None


def _attend_at_once(query, key, value, row, block, bias, highest):
    scores = _scores(_take_rows(query, row), key[block], bias, slice(None))
    weights = (scores - highest).exp2()
    return weights.sum(-1, keepdim=True), weights @ value[block]


def _slices(row, key):
    num_tiles, num_rows = row.shape
    step = max(_SCORES // (num_rows * key.shape[1]), 1)
    return [slice(x, x + step) for x in range(0, num_tiles, step)]


def _scores(queries, keys, bias, some):
    scores = torch.bmm(queries, keys.mT)
    if bias is None:
        return scores
    return scores + (bias if bias.shape[0] == 1 else bias[some])


def _highest(scores, bias):
    highest = scores.amax(-1, keepdim=True)
    if bias is None:
        return highest
    return highest.clamp(min=torch.finfo(scores.dtype).min / 4)


def _take_rows(x, index):
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)
