"""The Triton kernels as functions of JAX, with gradients.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim.
"""

import functools

import jax
import jax.numpy as jnp
import jax_triton

from keras_sa import backend
from keras_sa.triton import kernels
from keras_sa.triton import launch as launches


def attend_in_window(arguments, order, sinks):
    """`windowed_attention` of checked arguments."""
    a = arguments
    problem = launches.problem_of(a, order, backend.capability(a.query))
    return windowed_attention(problem, a.query, a.key, a.value, order, sinks)


def attend_to_neighbors(arguments, neighbors, sinks):
    """`neighbor_attention` of its arguments."""
    a = arguments
    problem = launches.decode_problem(
        a.query,
        a.key,
        a.value,
        a.scale,
        a.attn_logits_soft_cap,
        sinks is not None,
        backend.capability(a.query),
    )
    return neighbor_attention(
        problem, a.query, a.key, a.value, neighbors, sinks
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def windowed_attention(problem, query, key, value, order, sinks):
    """Output `[B, n, H, E]` and log-sum-exp `[B, n, H]`, float32.

    Args:
        problem: `launch.Problem`.
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`.
        value: `[B, n, K, E]`.
        order: int32 `[B or 1, K or 1, n]` or `None`; see
            `common.order_of`.
        sinks: float32 `[H]` or `None`.
    """
    rows = query.shape[:3]
    return _call(
        kernels.forward_kernel,
        launches.forward(problem),
        problem.scalars,
        (
            jax.ShapeDtypeStruct((*rows, value.shape[3]), value.dtype),
            jax.ShapeDtypeStruct(rows, "float32"),
        ),
        query,
        key,
        value,
        query if order is None else order,
        query if sinks is None else sinks,
    )


def _forward(problem, query, key, value, order, sinks):
    output, lse = windowed_attention(problem, query, key, value, order, sinks)
    return (output, lse), (query, key, value, order, sinks, output, lse)


def _backward(problem, saved, gradients):
    query, key, value, order, sinks, output, lse = saved
    output_gradient, lse_gradient = gradients
    inputs = (query, key, value, query if order is None else order)
    query_gradient, delta = _call(
        kernels.query_gradient_kernel,
        launches.query_gradient(problem, has_lse_gradient=True),
        problem.scalars,
        (_like(query), _like(lse)),
        *inputs,
        output,
        lse,
        output_gradient,
        lse_gradient,
    )
    key_gradient, value_gradient = _call(
        kernels.key_value_gradient_kernel,
        launches.key_value_gradient(problem),
        problem.scalars,
        (_like(key), _like(value)),
        *inputs,
        lse,
        output_gradient,
        delta,
    )
    sinks_gradient = None
    if sinks is not None:
        # A sink has a weight and no value: its score's gradient is the weight
        # times `0 - delta`. Padding has no sink.
        weight = jnp.where(
            jnp.isfinite(lse), jnp.exp(sinks - lse), jnp.zeros_like(lse)
        )
        sinks_gradient = -jnp.sum(weight * delta, axis=(0, 1))
    return query_gradient, key_gradient, value_gradient, None, sinks_gradient


windowed_attention.defvjp(_forward, _backward)


def neighbor_attention(problem, query, key, value, neighbors, sinks):
    """New tokens `[B, T, H, D]` attend to rows of a cache; no gradients.

    Args:
        problem: `launch.decode_problem`.
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        neighbors: int32 `[T, m]`: rows of the cache; -1 for none.
        sinks: float32 `[H]` or `None`.

    Returns:
        `[B, T, H, E]`.
    """
    shape = (*query.shape[:3], value.shape[3])
    (output,) = _call(
        kernels.decode_kernel,
        launches.decode(problem, query.shape[1]),
        (*neighbors.shape, key.shape[1], value.shape[1]),
        (jax.ShapeDtypeStruct(shape, value.dtype),),
        query,
        key,
        value,
        neighbors,
        query if sinks is None else sinks,
    )
    return output


def _like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _call(kernel, launch, scalars, out_shapes, *inputs):
    """Launches a kernel on its inputs."""

    @jax.custom_batching.custom_vmap
    def call(*inputs):
        if launch.grid[0] == 0:
            return tuple(jnp.zeros(x.shape, x.dtype) for x in out_shapes)
        return tuple(
            jax_triton.triton_call(
                *inputs,
                *scalars,
                kernel=kernel,
                out_shape=out_shapes,
                grid=launch.grid,
                num_warps=launch.num_warps,
                num_stages=launch.num_stages,
                compute_capability=launch.capability,
                **launch.constants,
            )
        )

    @call.def_vmap
    def refuse(axis_size, in_batched, *inputs):
        raise ValueError(
            "Windowed attention by `triton` is expected not to be mapped by "
            "`jax.vmap`: make the mapped axis part of the batch, or pass "
            f"implementation='portable'. Received: axis_size={axis_size}"
        )

    return _vary_like(inputs, call(*inputs))


def _vary_like(inputs, outputs):
    """Inside `jax.shard_map`, says that outputs vary over the mesh axes that
    some input varies over; a kernel's outputs do not know it."""
    axes = tuple(frozenset().union(*map(_varying_axes, inputs)))
    if not axes:
        return outputs
    return tuple(jax.lax.pcast(x, axes, to="varying") for x in outputs)


def _varying_axes(x):
    """The mesh axes that `x` varies over inside `jax.shard_map`."""
    aval = jax.typeof(x)
    if hasattr(aval, "vma"):  # until JAX 0.9
        return aval.vma
    return aval.manual_axis_type.varying
