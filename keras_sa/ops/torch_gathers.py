"""Rows of a table on torch, with a gradient that gathers."""

import torch


def take_rows(x, index, back):
    """`x[index]`.

    Args:
        x: `[R, F]`.
        index: int32 `[Q]`.
        back: int32 `[R]`, for each row of `x` its place in `index`.
    """
    return _Rows.apply(x, index, back)


class _Rows(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, index, back):
        return x.index_select(0, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def jvp(ctx, tangent, *others):
        (index,) = ctx.saved_tensors
        return tangent.index_select(0, index)

    @staticmethod
    def backward(ctx, gradient):
        index, back = ctx.saved_tensors
        return _Rows.apply(gradient, back, index), None, None
