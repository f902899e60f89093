"""What only torch can tell about its devices."""

import importlib.util

import torch

_OLDEST_CAPABILITY = (8, 0)  # bfloat16 and asynchronous copies


@torch.compiler.assume_constant_result
def why_no_triton(device_type, device_index):
    """Why Triton kernels cannot run on a device, or `None`.

    Args:
        device_type: as in `torch.device.type`.
        device_index: as in `torch.device.index`.
    """
    if importlib.util.find_spec("triton") is None:
        return "`triton` is not installed: `pip install triton`."
    if _is_interpreted():
        return None
    if device_type != "cuda" or torch.version.cuda is None:
        return (
            "`triton` needs tensors on an NVIDIA GPU; these are on "
            f"{device_type!r}."
        )
    capability = torch.cuda.get_device_capability(device_index)
    if capability < _OLDEST_CAPABILITY:
        return (
            "`triton` needs a GPU of compute capability 8.0 or newer; this one"
            f" has {capability[0]}.{capability[1]}."
        )
    return None


def _is_interpreted():
    """Whether Triton runs kernels in its interpreter, on any device."""
    import triton

    from keras_sa.ops.windowed import triton_kernels

    return not isinstance(
        triton_kernels.forward_kernel, triton.runtime.JITFunction
    )
