"""Attention to neighbours through the Triton kernel, on torch."""

from keras import ops

from keras_sa.ops.windowed import triton_launch


def why_not(arguments):
    from keras_sa.ops import torch_devices

    a = arguments
    if a.alibi_slopes is not None:
        return "`triton` has no alibi_slopes."
    if torch_devices.need_gradients(a.query, a.key, a.value, a.sinks):
        return "`triton` has no gradients of attention to neighbours."
    device = a.query.device
    return triton_launch.why_not_rows(a) or torch_devices.why_no_triton(
        device.type, device.index
    )


def by_default(arguments):
    return triton_launch.by_default()


def forward(arguments):
    from keras_sa.ops.windowed import torch_triton_ops

    a = arguments
    return torch_triton_ops.neighbor_attention(
        a.query,
        a.key,
        a.value,
        ops.cast(a.neighbors, "int32"),
        None if a.sinks is None else ops.cast(a.sinks, "float32"),
        float(a.scale),
        float(a.logit_soft_cap or 0.0),
    )
