"""Kernels in Triton: one source, called from torch and JAX.

Here stands what Triton needs, and its import beside TensorFlow. `kernels.py`
and who calls it, `torch.py` and `jax.py`, import it: only after `load`.
"""

import importlib
import importlib.util
import os
import sys

import keras

OLDEST_CAPABILITY = 80  # bfloat16 and asynchronous copies


def too_old(capability):
    """What a GPU of a compute capability is told, 80 for 8.0."""
    return (
        "`triton` needs a GPU of compute capability 8.0 or newer; this one has "
        f"{capability / 10}."
    )


def is_installed():
    return importlib.util.find_spec("triton") is not None


def load():
    """Imports Triton.

    TensorFlow's wheels put the LLVM that is linked into them in the global
    table of symbols, and a Triton that is imported later (by KerasHub, which
    imports TensorFlow on every backend, that is the rule) would call it in
    place of its own and crash the process:
    https://github.com/tensorflow/tensorflow/issues/124205. Here Triton's
    library is told to look at its own symbols first.
    """
    if "triton" in sys.modules or "tensorflow" not in sys.modules:
        importlib.import_module("triton")
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        importlib.import_module("triton")
    finally:
        sys.setdlopenflags(flags)


def calls():
    """The module that calls the kernels on the Keras backend in use."""
    # Spelled out: `torch.compile` does not read `importlib`.
    if keras.config.backend() == "jax":
        from keras_sa.triton import jax

        return jax
    from keras_sa.triton import torch

    return torch
