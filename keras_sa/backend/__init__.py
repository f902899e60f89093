"""The little that each framework needs, by the Keras backend in use.

Here stands what all of them can be asked; `jax.py`, `torch.py` and
`tensorflow.py` answer. None is imported before it is asked.

Keras has no backend-neutral gradient; tests and benchmarks need one. Its
compiled `predict` is of whole models, and gives their buffers away on JAX;
evaluation needs another.
"""

import keras


def module():
    """The module of the Keras backend in use."""
    name = keras.config.backend()
    # Spelled out: `torch.compile` does not read `importlib`.
    if name == "jax":
        from keras_sa.backend import jax

        return jax
    if name == "torch":
        from keras_sa.backend import torch

        return torch
    if name == "tensorflow":
        from keras_sa.backend import tensorflow

        return tensorflow
    raise ValueError(
        "The Keras backend is expected to be 'jax', 'torch' or 'tensorflow'. "
        f"Received: {name!r}"
    )


# Programs and gradients.


def compile(function):
    """`function` of tensors, compiled as Keras would compile a model.

    On torch, where Keras runs models eagerly, the function itself.
    """
    return module().compile(function)


def compile_inference(model, function):
    """`function` of tensors that calls a model, compiled without gradients.

    The weights are those of the time of each call, and nobody else's buffers
    are given away. What the model computes with them is that of the first
    call with inputs of a shape: compile anew after a change of its layers.

    Args:
        model: a `keras.Model`. On TensorFlow its `jit_compile` holds.
        function: takes and returns tensors in nested structures.
    """
    return module().compile_inference(model, function)


def value_and_gradients(function):
    """Turns a scalar function of tensors into value and gradients.

    Args:
        function: takes float tensors, returns a scalar tensor, or a pair of
            it and other outputs.

    Returns:
        A function of the same tensors that returns what `function` returns
        and a tuple of gradients, one per argument.
    """
    return module().value_and_gradients(function)


def wait(tensors):
    """Waits until the tensors are computed; for timing."""
    return module().wait(tensors)


def float64():
    """A context in which float64 tensors stay float64."""
    return module().float64()


def no_gradients():
    """A context in which nothing is kept for gradients."""
    return module().no_gradients()


# What is going on.


def is_tracing():
    """Whether `torch.compile` or `torch.export` is reading the code.

    On JAX and TensorFlow the tensors themselves say that they are traced.
    """
    return module().is_tracing()


def is_transforming():
    """Whether `torch.func` or forward-mode differentiation is at work."""
    return module().is_transforming()


def is_in_backward():
    """Whether torch is running a backward pass in this thread."""
    return module().is_in_backward()


def need_gradients(*tensors):
    """Whether torch will ask for a gradient through some of the tensors.

    JAX and TensorFlow do not tell.
    """
    return module().need_gradients(*tensors)


# Devices.


def device_kind(tensor):
    """`"cpu"`, `"gpu"` or another kind of device that a tensor is on; where
    it does not say, as while a program is traced, the kind that is used by
    default."""
    return module().device_kind(tensor)


def capability(tensor):
    """Compute capability of the GPU that a tensor is on, 80 for 8.0."""
    return module().capability(tensor)


def why_no_triton(tensor):
    """Why Triton kernels cannot run on a tensor, or `None`."""
    return module().why_no_triton(tensor)


def gives_memory_back():
    """Whether what is freed on a CPU goes back to the C library.

    TensorFlow with oneDNN keeps it in a pool of its own.
    """
    return module().gives_memory_back()


def peak_bytes_of_device(call, tensor):
    """By how many bytes `call()` raises what is allocated on the device of a
    tensor, which is no CPU, at its peak; `None` where nobody counts."""
    return module().peak_bytes_of_device(call, tensor)


# Operations that a framework has a faster way for.


def take_rows(x, index, back):
    """`x[index]`, with a gradient that gathers.

    Args:
        x: `[R, F]`.
        index: int32 `[Q]`.
        back: int32 `[R]`, for each row of `x` its place in `index`.
    """
    return module().take_rows(x, index, back)


def top_k(x, k):
    """Values and indices `[..., k]` of the largest of a row, in order."""
    return module().top_k(x, k)


def takes_tiles(query, row):
    """Whether `attend_to_tiles` is the faster way for these tensors."""
    return module().takes_tiles(query, row)


def attend_to_tiles(query, key, value, row, block, visible):
    """Attention of tiles to blocks on CPUs, some tiles at a time.

    What is as large as the scores lives in a cache for a moment. Written to
    memory and kept for the gradient it takes longer than computing it again:
    so the gradient does.

    Args:
        query: `[L, D]`, times the scale.
        key: `[C, b, D]`.
        value: `[C, b, E]`.
        row: int32 `[t, T]`: the queries of each tile.
        block: int32 `[t]`: the block that each tile reads, in ascending order.
        visible: boolean, broadcasts to `[t, T, b]`; `None` for all.

    Returns:
        As `keras_sa.ops.routed.attend.attend_to_tiles`.
    """
    return module().attend_to_tiles(query, key, value, row, block, visible)
