"""What torch needs of its own; see `keras_sa.backend`.

Letters of tiles: `L` queries, `C` blocks, `b` keys in a block, `D` head dim,
`E` value head dim, `t` tiles, `T` queries in a tile.
"""

import contextlib
import math
import os

import torch

from keras_sa.backend import triton_loading
from keras_sa.backend.neutral import gives_memory_back

# `torch.topk` on a CPU looks at a row as if to sort it unless the row is this
# many times longer than what is wanted.
_PARTIAL = 64
# Exponentials with base 2 are several times faster than those with base e,
# which take as long again where they underflow.
_LN2 = math.log(2)
# Scores of tiles at a time: 1 MB of float32.
_SCORES = 2**18


def compile(function):
    return function


def compile_inference(model, function):
    return torch.no_grad()(function)


def value_and_gradients(function):
    def run(*tensors):
        tensors = [x.detach().requires_grad_() for x in tensors]
        result = function(*tensors)
        scalar = result[0] if isinstance(result, tuple) else result
        return result, torch.autograd.grad(
            scalar, tensors, allow_unused=True, materialize_grads=True
        )

    return run


def wait(tensors):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tensors


def float64():
    return contextlib.nullcontext()


def no_gradients():
    return torch.no_grad()


def is_tracing():
    return torch.compiler.is_compiling()


def is_transforming():
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def is_in_backward():
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1


def device_kind(tensor):
    kind = tensor.device.type
    return "gpu" if kind == "cuda" else kind


def capability(tensor):
    """Also of anything else, where kernels are interpreted."""
    if tensor.device.type != "cuda":
        return triton_loading.OLDEST_CAPABILITY
    return _capability(tensor.device.index)


def _capability(device_index):
    major, minor = torch.cuda.get_device_capability(device_index)
    return 10 * major + minor


def why_no_triton(tensor):
    return why_no_triton_on(tensor.device.type, tensor.device.index)


@torch.compiler.assume_constant_result
def why_no_triton_on(device_type, device_index):
    if os.environ.get("TRITON_INTERPRET") == "1":  # on any device
        triton_loading.load()
        return None
    if device_type != "cuda" or torch.version.cuda is None:
        return (
            "`triton` needs tensors on an NVIDIA GPU; these are on "
            f"{device_type!r}."
        )
    if not triton_loading.is_installed():
        return "`triton` is not installed: `pip install triton`."
    found = _capability(device_index)
    if found < triton_loading.OLDEST_CAPABILITY:
        return triton_loading.too_old(found)
    triton_loading.load()
    return None


def peak_bytes_of_device(call, tensor):
    if tensor.device.type != "cuda":
        return None
    wait(tensor)
    torch.cuda.reset_peak_memory_stats(tensor.device)
    before = torch.cuda.memory_allocated(tensor.device)
    wait(call())
    return torch.cuda.max_memory_allocated(tensor.device) - before


def has_flex_attention():
    """Whether FlexAttention returns a log-sum-exp by `AuxRequest`."""
    # It takes as long to import as the rest of torch.
    from torch.nn.attention import flex_attention

    return hasattr(flex_attention, "AuxRequest")


def need_gradients(*tensors):
    return torch.is_grad_enabled() and any(
        getattr(x, "requires_grad", False) for x in tensors
    )


def bias_of(visible, dtype):
    """What hides keys by addition, as in Keras: it is finite, and so are a row
    that attends to nobody and its gradients."""
    lowest = 0.7 * torch.finfo(dtype).min
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, lowest)


def take_rows(x, index, back):
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


def top_k(x, k):
    is_slow = x.device.type == "cpu" and not is_tracing()
    # One maximum after the other is faster for a few.
    if not is_slow or k > 4 or _PARTIAL * k <= x.shape[-1]:
        return torch.topk(x, k)
    results, rest = [], x
    for _ in range(k):
        results.append(rest.max(-1, keepdim=True))
        rest = rest.scatter(-1, results[-1].indices, -float("inf"))
    values, indices = zip(*results)
    return torch.cat(values, -1), torch.cat(indices, -1)


def takes_tiles(query, row):
    """Not where a graph is recorded, which would have every step in it."""
    return (
        query.device.type == "cpu"
        and not is_tracing()
        and not is_transforming()
    )


def attend_to_tiles(query, key, value, row, block, visible):
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
                _gather(query, row[some]),
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
            queries = _gather(query, row[some])
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
    scores = _scores(_gather(query, row), key[block], bias, slice(None))
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


def _gather(x, index):
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)
