"""The attentions that `gpu.py` times, and how each is checked before.

All of them are functions of query `[B, n, H, D]`, key and value `[B, n, K, D]`
on torch. What a rival wants in another layout is given as a view.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `w` window, `t` blocks of FlexAttention's mask.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.flex_attention import flex_attention

from examples.benchmarks.gpu_oracle import BOUNDS
from examples.benchmarks.gpu_oracle import case_visibility
from examples.benchmarks.gpu_oracle import exact_attention
from examples.benchmarks.gpu_oracle import full_visibility
from examples.benchmarks.gpu_oracle import relative_error
from examples.benchmarks.gpu_oracle import union

FLEX_BLOCK = 128
SAMPLED_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of a timed attention.

    Attributes:
        length: `n`.
        head_dim: `D`.
        heads: `H`.
        kv_heads: `K`.
        window: `w`.
        batch: `B`.
    """

    length: int
    head_dim: int
    heads: int = 16
    kv_heads: int = 16
    window: int = 256
    batch: int = 1

    def __str__(self):
        return (
            f"n={self.length:,} D={self.head_dim} "
            f"H={self.heads} K={self.kv_heads}"
        )

    def make_inputs(self, seed, device, dtype, requires_grad=False):
        """Query, key and value, random."""
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(
            torch.randn(
                (self.batch, self.length, heads, self.head_dim),
                generator=generator,
                device=device,
            )
            .to(dtype)
            .requires_grad_(requires_grad)
            for heads in (self.heads, self.kv_heads, self.kv_heads)
        )


@dataclasses.dataclass(frozen=True)
class Attention:
    """A timed attention.

    Attributes:
        function: of query, key and value.
        parts: `(weight, visibility)` of the attentions whose sum it is.
        has_backward: whether there are gradients.
        is_compiled_once: its forward pass is timed as it was compiled, ready
            for gradients; leaving them out would compile it again.
    """

    function: Callable
    parts: tuple
    has_backward: bool = True
    is_compiled_once: bool = False


class Attentions:
    """All timed attentions of one shape, by name, made when asked for."""

    def __init__(self, shape, device, dtype, is_rehearsal=False):
        from keras_sa.ops import sample_permutation
        from tests import testing

        self.shape, self.device, self.dtype = shape, device, dtype
        self.is_rehearsal = is_rehearsal
        self.permutation = sample_permutation(shape.length, seed=7).to(device)
        self.case = testing.Case(
            "timed",
            length=shape.length,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            window=shape.window,
            is_causal=True,
        )

    def visible(self, is_stochastic=True, **changes):
        case = dataclasses.replace(self.case, **changes)
        order = self.permutation.cpu().numpy() if is_stochastic else None
        return case_visibility(case, order, device=self.device)

    def make(self, name):
        """The `Attention` of a name in `NAMES`."""
        return _MAKERS[name](self)

    def window(self, **arguments):
        """The stochastic window as the layers call it: the permutation is
        known to be one and is not looked at."""
        from keras_sa.ops.inputs import check_inputs
        from keras_sa.ops.windowed.stochastic import attend_in_order

        shared = {
            "is_causal": arguments.pop("is_causal", True),
            "return_lse": arguments.pop("return_lse", False),
        }
        settings = {
            "window_size": self.shape.window,
            "neighborhood": "window",
            "implementation": "triton",
        }
        settings.update(arguments)

        def attend(query, key, value):
            inputs = check_inputs(query, key, value, **shared)
            return attend_in_order(inputs, self.permutation, **settings)

        return attend

    def sliding(self, **arguments):
        from keras_sa.ops import sliding_window_attention

        settings = {
            "window_size": self.shape.window,
            "is_causal": True,
            "implementation": "triton",
        }
        settings.update(arguments)

        def attend(query, key, value):
            return sliding_window_attention(query, key, value, **settings)

        return attend


def _stochastic(all_):
    return Attention(all_.window(), ((1, all_.visible()),))


def _stochastic_public(all_):
    from keras_sa.ops import stochastic_attention

    def attend(query, key, value):
        return stochastic_attention(
            query,
            key,
            value,
            all_.permutation,
            window_size=all_.shape.window,
            is_causal=True,
        )

    return Attention(attend, ((1, all_.visible()),))


def _portable(all_):
    function = all_.window(implementation="portable")
    return Attention(function, ((1, all_.visible()),))


def _sliding(all_):
    return Attention(all_.sliding(), ((1, all_.visible(False)),))


def _block(implementation):
    def make(all_):
        function = all_.window(
            neighborhood="block", implementation=implementation
        )
        visible = all_.visible(neighborhood="block")
        return Attention(function, ((1, visible),))

    return make


def _merged(all_):
    from keras_sa.ops import merge_attention

    window = all_.shape.window
    far = all_.window(exclude_local=window, return_lse=True)
    near = all_.sliding(return_lse=True)

    def attend(query, key, value):
        outputs, lses = zip(far(query, key, value), near(query, key, value))
        return merge_attention(outputs, lses)

    visible = union(
        all_.visible(exclude_local=window), all_.visible(is_stochastic=False)
    )
    return Attention(attend, ((1, visible),))


def _gated(all_):
    from keras_sa.ops import gated_sum

    far, near = all_.window(), all_.sliding()
    shape = (all_.shape.batch, all_.shape.length, all_.shape.heads, 1)
    gates = [
        torch.full(shape, 0.5, device=all_.device, dtype=all_.dtype)
        for _ in range(2)
    ]

    def attend(query, key, value):
        paths = [far(query, key, value), near(query, key, value)]
        return gated_sum(paths, gates)

    visible = (all_.visible(), all_.visible(is_stochastic=False))
    return Attention(attend, tuple((0.5, part) for part in visible))


def _full(backend):
    """Full causal attention through one of torch's kernels."""

    def make(all_):
        backends = [SDPBackend.MATH] if all_.is_rehearsal else [backend]

        def attend(query, key, value):
            query, key, value = (x.transpose(1, 2) for x in (query, key, value))
            with sdpa_kernel(backends):
                output = functional.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    is_causal=True,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
            return output.transpose(1, 2)

        visible = full_visibility(all_.shape.length, all_.device)
        return Attention(attend, ((1, visible),))

    return make


class Permute(torch.autograd.Function):
    """Tokens in another order. Both directions are a gather: the gradient of
    torch's own `index_select` would add with atomics, and slow the rivals."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(order, inverse)
        return x.index_select(1, order)

    @staticmethod
    def backward(ctx, gradient):
        order, inverse = ctx.saved_tensors
        return gradient.index_select(1, inverse), None, None


def _flex(all_):
    """The same mask through FlexAttention: permute, attend, un-permute."""
    order = all_.permutation
    inverse = torch.argsort(order)
    block_mask = band_mask(all_.shape, order)
    compiled = flex_attention
    if not all_.is_rehearsal:
        torch._dynamo.reset()  # one compilation per length, and room for all
        compiled = torch.compile(flex_attention, dynamic=False)
    is_grouped = all_.shape.heads != all_.shape.kv_heads

    def attend(query, key, value):
        query, key, value = (
            Permute.apply(x, order, inverse).transpose(1, 2)
            for x in (query, key, value)
        )
        output = compiled(
            query, key, value, block_mask=block_mask, enable_gqa=is_grouped
        )
        return Permute.apply(output.transpose(1, 2), inverse, order)

    return Attention(
        attend,
        ((1, all_.visible()),),
        has_backward=not all_.is_rehearsal,  # none on a CPU
        is_compiled_once=not all_.is_rehearsal,
    )


def band_mask(shape, order):
    """FlexAttention's mask of a causal stochastic window, over slots."""
    length, window = shape.length, shape.window
    before, after = window // 2, (window - 1) // 2
    count = -(-length // FLEX_BLOCK)  # t
    first_slot = torch.arange(count, device=order.device) * FLEX_BLOCK
    start = (first_slot - before).clamp(min=0) // FLEX_BLOCK
    stop = (first_slot + FLEX_BLOCK - 1 + after) // FLEX_BLOCK + 1
    stop = stop.clamp(max=count)
    column = torch.arange(count, device=order.device)
    # The blocks that a row of blocks visits come first; the rest is not read.
    indices = (start[:, None] + column) % count

    def mask(batch, head, query_slot, key_slot):
        ahead = query_slot - key_slot
        is_near = (ahead <= before) & (ahead >= -after)
        return is_near & (order[key_slot] <= order[query_slot])

    return BlockMask.from_kv_blocks(
        (stop - start).to(torch.int32)[None, None],
        indices.to(torch.int32)[None, None].contiguous(),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=mask,
        seq_lengths=(length, length),
    )


def _unfused(all_):
    """Permuted copies around a window kernel without an order. Such a kernel
    knows no original positions: its window is not causal."""
    window = all_.sliding(is_causal=False)
    order = all_.permutation
    inverse = torch.argsort(order)

    def attend(query, key, value):
        query, key, value = (
            Permute.apply(x, order, inverse) for x in (query, key, value)
        )
        return Permute.apply(window(query, key, value), inverse, order)

    return Attention(attend, ((1, all_.visible(is_causal=False)),))


def _fused_all_pairs(all_):
    """What `_unfused` computes, fused."""
    visible = all_.visible(is_causal=False)
    return Attention(all_.window(is_causal=False), ((1, visible),))


STOCHASTIC, SLIDING = "stochastic window", "sliding window"
FLASH, CUDNN = "full, flash", "full, cuDNN"
FLEX = "FlexAttention, same mask"
UNFUSED, FUSED = "permute + window + un-permute", "the same, fused"
_MAKERS = {
    STOCHASTIC: _stochastic,
    SLIDING: _sliding,
    FLASH: _full(SDPBackend.FLASH_ATTENTION),
    CUDNN: _full(SDPBackend.CUDNN_ATTENTION),
    "block, native": _block("native_block"),
    "block, triton": _block("triton"),
    FLEX: _flex,
    "small world, one softmax": _merged,
    "small world, gated": _gated,
    UNFUSED: _unfused,
    FUSED: _fused_all_pairs,
    "stochastic window, portable": _portable,
    "stochastic window, public op": _stochastic_public,
}
NAMES = tuple(_MAKERS)


def with_gradients(function):
    """Forward and backward; returns the output and the gradients."""

    def run(query, key, value, output_gradient):
        output = function(query, key, value)
        gradients = torch.autograd.grad(
            output, (query, key, value), output_gradient
        )
        return output, *gradients

    return run


def check(attention, inputs, is_whole):
    """Relative errors of an attention, by name.

    Args:
        attention: `Attention`.
        inputs: query, key and value; require gradients if it has them.
        is_whole: whether to check everything and the gradients, or some rows
            of the output.
    """
    length = inputs[0].shape[1]
    if not (is_whole and attention.has_backward):
        generator = torch.Generator().manual_seed(length)
        rows = torch.randperm(length, generator=generator)[:SAMPLED_ROWS]
        rows = rows.to(inputs[0].device)
        output = attention.function(*inputs).detach()
        exact = _exact(attention, inputs, rows, None)
        return {"output": relative_error(output[:, rows], exact["output"])}
    weight = torch.randn_like(inputs[0])
    actual = with_gradients(attention.function)(*inputs, weight)
    exact = _exact(attention, inputs, None, weight)
    return {
        name: relative_error(x, exact[name])
        for name, x in zip(("output", "query", "key", "value"), actual)
    }


def _exact(attention, inputs, rows, weight):
    """The weighted sum over the parts; the loss is linear in them."""
    sums = {}
    for share, visible in attention.parts:
        output, _, gradients = exact_attention(
            *inputs,
            visible,
            tokens=rows,
            weights=None if weight is None else (share * weight, None),
        )
        for name, x in {"output": share * output, **gradients}.items():
            sums[name] = sums[name] + x if name in sums else x
    return sums


def is_right(errors, dtype):
    """Whether the errors of `check` are within the bounds of the dtype."""
    return all(
        error <= BOUNDS[dtype][name != "output"]
        for name, error in errors.items()
    )
