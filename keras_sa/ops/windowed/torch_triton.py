"""Windowed attention through the Triton kernels, on torch."""

from keras import ops

from keras_sa.ops.windowed import triton_launch


def why_not(arguments):
    objection = triton_launch.why_not(arguments)
    if objection is not None:
        return objection
    from keras_sa.ops import torch_devices

    device = arguments.query.device
    return torch_devices.why_no_triton(device.type, device.index)


def by_default(arguments):
    return triton_launch.by_default()


def forward(arguments):
    from keras_sa.ops.windowed import torch_triton_ops

    a = arguments
    sinks = None if a.sinks is None else ops.cast(a.sinks, "float32")
    output, lse = torch_triton_ops.windowed_attention(
        a.query,
        a.key,
        a.value,
        triton_launch.order_of(a),
        sinks,
        *torch_triton_ops.settings_of(a),
    )
    return (output, lse) if a.return_lse else output
