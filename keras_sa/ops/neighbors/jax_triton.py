"""Attention to neighbours through the Triton kernel, on JAX."""

from keras import ops

from keras_sa.ops.windowed import triton_launch


def why_not(arguments):
    from keras_sa.ops import jax_devices

    if arguments.alibi_slopes is not None:
        return "`triton` has no alibi_slopes."
    return triton_launch.why_not_rows(arguments) or jax_devices.why_no_triton()


def by_default(arguments):
    return triton_launch.by_default()


def forward(arguments):
    from keras_sa.ops import jax_devices
    from keras_sa.ops.windowed import jax_triton_calls

    a = arguments
    problem = triton_launch.decode_problem(
        a.query,
        a.key,
        a.value,
        a.scale,
        a.logit_soft_cap,
        a.sinks is not None,
        jax_devices.capability(),
    )
    return jax_triton_calls.neighbor_attention(
        problem,
        a.query,
        a.key,
        a.value,
        ops.cast(a.neighbors, "int32"),
        None if a.sinks is None else ops.cast(a.sinks, "float32"),
    )
