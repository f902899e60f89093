"""What only torch can tell about its devices."""

import os

import torch

from keras_sa.ops import triton_loading


@torch.compiler.assume_constant_result
def why_no_triton(device_type, device_index):
    """Why Triton kernels cannot run on a device, or `None`.

    Args:
        device_type: as in `torch.device.type`.
        device_index: as in `torch.device.index`.
    """
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
    found = capability(torch.device(device_type, device_index))
    if found < triton_loading.OLDEST_CAPABILITY:
        return triton_loading.too_old(found)
    triton_loading.load()
    return None


def need_gradients(*tensors):
    """Whether autograd will ask for a gradient through some of the tensors."""
    return torch.is_grad_enabled() and any(
        getattr(x, "requires_grad", False) for x in tensors
    )


def capability(device):
    """Compute capability of a GPU, 80 for 8.0, and of anything else, where
    kernels are interpreted."""
    if device.type != "cuda":
        return triton_loading.OLDEST_CAPABILITY
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
