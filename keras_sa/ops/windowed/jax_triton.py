"""Windowed attention through the Triton kernels, on JAX."""

from keras import ops

from keras_sa.ops.windowed import triton_launch


def why_not(arguments):
    from keras_sa.ops import jax_devices

    if not all(isinstance(size, int) for size in arguments.query.shape):
        return "`triton` needs known sizes."
    return triton_launch.why_not(arguments) or jax_devices.why_no_triton()


def by_default(arguments):
    return triton_launch.by_default()


def forward(arguments):
    from keras_sa.ops import jax_devices
    from keras_sa.ops.windowed import jax_triton_calls

    a = arguments
    order = triton_launch.order_of(a)
    output, lse = jax_triton_calls.windowed_attention(
        triton_launch.problem_of(a, order, jax_devices.capability()),
        a.query,
        a.key,
        a.value,
        order,
        None if a.sinks is None else ops.cast(a.sinks, "float32"),
    )
    return (output, lse) if a.return_lse else output
