"""What only JAX can tell about its devices."""

import importlib.util

import jax

from keras_sa.ops import triton_loading


def why_no_triton():
    """Why Triton kernels cannot run here, or `None`."""
    device = jax.devices()[0]
    if device.platform != "gpu" or not hasattr(device, "compute_capability"):
        return (
            "`triton` needs an NVIDIA GPU; JAX runs on "
            f"{device.platform!r} ({device.device_kind})."
        )
    for package in ("triton", "jax_triton"):
        if importlib.util.find_spec(package) is None:
            return (
                f"`triton` needs the package {package!r}: "
                "`pip install 'keras_sa[jax-gpu]'`."
            )
    if capability() < triton_loading.OLDEST_CAPABILITY:
        return triton_loading.too_old(capability())
    triton_loading.load()
    return None


def capability():
    """Compute capability of the GPU, 80 for 8.0."""
    major, minor = jax.devices()[0].compute_capability.split(".")
    return 10 * int(major) + int(minor)
