"""Compile and differentiate on the Keras backend in use.

Keras has no backend-neutral gradient; tests and benchmarks need one. Its
compiled `predict` is of whole models, and gives their buffers away on JAX;
evaluation needs another.
"""

import importlib

import keras


def backend_module():
    """`jax_autodiff`, `torch_autodiff` or `tensorflow_autodiff`."""
    return importlib.import_module(
        f"keras_sa.autodiff.{keras.config.backend()}_autodiff"
    )


def compile(function):
    """`function` of tensors, compiled as Keras would compile a model.

    On torch, where Keras runs models eagerly, the function itself.
    """
    return backend_module().compile(function)


def compile_inference(model, function):
    """`function` of tensors that calls a model, compiled without gradients.

    The weights are those of the time of each call, and nobody else's buffers
    are given away. What the model computes with them is that of the first
    call with inputs of a shape: compile anew after a change of its layers.

    Args:
        model: a `keras.Model`. On TensorFlow its `jit_compile` holds.
        function: takes and returns tensors in nested structures.
    """
    return backend_module().compile_inference(model, function)


def value_and_gradients(function):
    """Turns a scalar function of tensors into value and gradients.

    Args:
        function: takes float tensors, returns a scalar tensor, or a pair of
            it and other outputs.

    Returns:
        A function of the same tensors that returns what `function` returns
        and a tuple of gradients, one per argument.
    """
    return backend_module().value_and_gradients(function)


def wait(tensors):
    """Waits until the tensors are computed; for timing."""
    return backend_module().wait(tensors)


def float64():
    """A context in which float64 tensors stay float64."""
    return backend_module().float64()


def no_gradients():
    """A context in which nothing is kept for gradients."""
    return backend_module().no_gradients()
