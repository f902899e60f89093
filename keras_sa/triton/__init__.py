"""Kernels in Triton: one source, called from torch and JAX.

`kernels.py` and who calls it, `torch.py` and `jax.py`, import Triton: only
after `keras_sa.backend.triton_loading.load`.
"""

import keras


def calls():
    """The module that calls the kernels on the Keras backend in use."""
    # Spelled out: `torch.compile` does not read `importlib`.
    if keras.config.backend() == "jax":
        from keras_sa.triton import jax

        return jax
    from keras_sa.triton import torch

    return torch
