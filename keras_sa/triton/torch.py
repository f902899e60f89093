"""The Triton kernels as operators of torch, with gradients.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim.
"""

import torch
from torch import Tensor

from keras_sa import backend
from keras_sa.triton import kernels
from keras_sa.triton import launch as launches

# How the settings of a problem stand in the schema of an operator.
_NO_SOFT_CAP, _NO_EXCLUSION = 0.0, -1


def attend_in_window(arguments, order, sinks):
    """`windowed_attention` of checked arguments."""
    a = arguments
    settings = settings_of(a)
    return windowed_attention(a.query, a.key, a.value, order, sinks, *settings)


def attend_to_neighbors(arguments, neighbors, sinks):
    """`neighbor_attention` of its arguments."""
    a = arguments
    return neighbor_attention(
        a.query,
        a.key,
        a.value,
        neighbors,
        sinks,
        float(a.scale),
        float(a.attn_logits_soft_cap or _NO_SOFT_CAP),
    )


def settings_of(arguments):
    """The arguments of the operators that are not tensors."""
    a = arguments
    return (
        a.left,
        a.right,
        a.window_size if a.neighborhood == "block" else 0,
        a.is_causal,
        *(launches.exclude_local_of(a) or (_NO_EXCLUSION, _NO_EXCLUSION)),
        float(a.scale),
        float(a.attn_logits_soft_cap or _NO_SOFT_CAP),
    )


def _problem(query, key, value, order, has_sinks, settings):
    """The `launch.Problem` of an operator's arguments."""
    left, right, block_size, is_causal, *exclude_local, scale, soft_cap = (
        settings
    )
    batch_size, length, num_heads, head_dim = query.shape
    is_excluding = exclude_local[0] != _NO_EXCLUSION
    return launches.Problem(
        batch_size=batch_size,
        length=length,
        num_heads=num_heads,
        num_key_value_heads=key.shape[2],
        head_dim=head_dim,
        value_dim=value.shape[3],
        itemsize=query.element_size(),
        left=left,
        right=right,
        block_size=block_size,
        is_causal=is_causal,
        exclude_local=tuple(exclude_local) if is_excluding else None,
        scale=scale,
        attn_logits_soft_cap=None if soft_cap == _NO_SOFT_CAP else soft_cap,
        order_shape=None if order is None else tuple(order.shape),
        has_sinks=has_sinks,
        capability=backend.capability(query),
    )


def _run(kernel, launch, *arguments):
    if launch.grid[0] == 0:
        return
    with torch.cuda.device_of(arguments[0]):
        kernel[launch.grid](
            *arguments,
            **launch.constants,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
        )


def _contiguous(*tensors):
    return [x if x is None else x.contiguous() for x in tensors]


@torch.library.custom_op("keras_sa::windowed_attention", mutates_args=())
def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor | None,
    sinks: Tensor | None,
    left: int,
    right: int,
    block_size: int,
    is_causal: bool,
    exclude_left: int,
    exclude_right: int,
    scale: float,
    attn_logits_soft_cap: float,
) -> tuple[Tensor, Tensor]:
    """Output `[B, n, H, E]` and log-sum-exp `[B, n, H]`, float32.

    Args:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`.
        value: `[B, n, K, E]`.
        order: int32 `[B or 1, K or 1, n]`; see `common.order_of`.
        sinks: float32 `[H]` or `None`.
        Others: see `launch.Problem`; `exclude_left=-1` excludes
            nothing, `attn_logits_soft_cap=0` caps nothing.
    """
    query, key, value, order, sinks = _contiguous(
        query, key, value, order, sinks
    )
    problem = _problem(
        query,
        key,
        value,
        order,
        sinks is not None,
        (
            left,
            right,
            block_size,
            is_causal,
            exclude_left,
            exclude_right,
            scale,
            attn_logits_soft_cap,
        ),
    )
    output, lse = _like_outputs(query, value)
    _run(
        kernels.forward_kernel,
        launches.forward(problem),
        query,
        key,
        value,
        query if order is None else order,
        query if sinks is None else sinks,
        *problem.scalars,
        output,
        lse,
    )
    return output, lse


def _like_outputs(query, value):
    batch_size, length, num_heads, _ = query.shape
    output = value.new_empty((batch_size, length, num_heads, value.shape[3]))
    lse = query.new_empty((batch_size, length, num_heads), dtype=torch.float32)
    return output, lse


@windowed_attention.register_fake
def _(query, key, value, order, sinks, *settings):
    return _like_outputs(query, value)


@torch.library.custom_op(
    "keras_sa::windowed_attention_gradients", mutates_args=()
)
def windowed_attention_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor | None,
    output: Tensor,
    lse: Tensor,
    output_gradient: Tensor,
    lse_gradient: Tensor | None,
    left: int,
    right: int,
    block_size: int,
    is_causal: bool,
    exclude_left: int,
    exclude_right: int,
    scale: float,
    attn_logits_soft_cap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, and `delta` `[B, n, H]`: a row's
    `output . output_gradient - lse_gradient`."""
    query, key, value, order, output, lse = _contiguous(
        query, key, value, order, output, lse
    )
    output_gradient, lse_gradient = _contiguous(output_gradient, lse_gradient)
    problem = _problem(
        query,
        key,
        value,
        order,
        False,
        (
            left,
            right,
            block_size,
            is_causal,
            exclude_left,
            exclude_right,
            scale,
            attn_logits_soft_cap,
        ),
    )
    *gradients, delta = _like_inputs(query, key, value, lse)
    inputs = (query, key, value, query if order is None else order)
    _run(
        kernels.query_gradient_kernel,
        launches.query_gradient(problem, lse_gradient is not None),
        *inputs,
        output,
        lse,
        output_gradient,
        lse if lse_gradient is None else lse_gradient,
        *problem.scalars,
        gradients[0],
        delta,
    )
    _run(
        kernels.key_value_gradient_kernel,
        launches.key_value_gradient(problem),
        *inputs,
        lse,
        output_gradient,
        delta,
        *problem.scalars,
        *gradients[1:],
    )
    return *gradients, delta


def _like_inputs(*tensors):
    return tuple(x.new_empty(x.shape) for x in tensors)


@windowed_attention_gradients.register_fake
def _(query, key, value, order, output, lse, *others):
    return _like_inputs(query, key, value, lse)


def _save(ctx, inputs, output):
    query, key, value, order, sinks, *settings = inputs
    ctx.save_for_backward(query, key, value, order, sinks, *output)
    ctx.settings = settings
    ctx.set_materialize_grads(False)


def _backward(ctx, output_gradient, lse_gradient):
    query, key, value, order, sinks, output, lse = ctx.saved_tensors
    none = (None,) * len(ctx.settings)
    if output_gradient is None and lse_gradient is None:
        return None, None, None, None, None, *none
    if output_gradient is None:
        output_gradient = torch.zeros_like(output)
    *gradients, delta = windowed_attention_gradients(
        query,
        key,
        value,
        order,
        output,
        lse,
        output_gradient,
        lse_gradient,
        *ctx.settings,
    )
    if sinks is None:
        return *gradients, None, None, *none
    # A sink has a weight and no value: its score's gradient is the weight
    # times `0 - delta`. Padding has no sink.
    weight = torch.exp(sinks - lse).where(torch.isfinite(lse), 0.0)
    sinks_gradient = -(weight * delta).sum(dim=(0, 1))
    return *gradients, None, sinks_gradient, *none


windowed_attention.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op("keras_sa::neighbor_attention", mutates_args=())
def neighbor_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    neighbors: Tensor,
    sinks: Tensor | None,
    scale: float,
    attn_logits_soft_cap: float,
) -> Tensor:
    """New tokens `[B, T, H, D]` attend to rows of a cache; no gradients.

    Args:
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        neighbors: int32 `[T, m]`: rows of the cache; -1 for none.
        sinks: float32 `[H]` or `None`.
        scale: factor on the scores.
        attn_logits_soft_cap: `c` of `c * tanh(score / c)`; 0 caps nothing.

    Returns:
        `[B, T, H, E]`.
    """
    query, neighbors, sinks = _contiguous(query, neighbors, sinks)
    key, value = _whole_rows(key), _whole_rows(value)
    problem = launches.decode_problem(
        query,
        key,
        value,
        scale,
        None if attn_logits_soft_cap == _NO_SOFT_CAP else attn_logits_soft_cap,
        sinks is not None,
        backend.capability(query),
    )
    output = _like_step(query, value)
    _run(
        kernels.decode_kernel,
        launches.decode(problem, query.shape[1]),
        query,
        key,
        value,
        neighbors,
        query if sinks is None else sinks,
        *neighbors.shape,
        key.stride(0) // key.stride(1),
        value.stride(0) // value.stride(1),
        output,
    )
    return output


def _whole_rows(cache):
    """A cache `[B, S, K, D]` as the kernel reads it: examples are any number
    of rows apart. A part of a larger cache stays where it is, for a copy
    would be O(S)."""
    strides = torch.empty(cache.shape, device="meta").stride()
    is_row_major = cache.stride()[1:] == strides[1:]
    if is_row_major and cache.stride(0) % strides[1] == 0:
        return cache
    return cache.contiguous()


def _like_step(query, value):
    return value.new_empty((*query.shape[:3], value.shape[3]))


@neighbor_attention.register_fake
def _(query, key, value, neighbors, sinks, scale, attn_logits_soft_cap):
    return _like_step(query, value)
