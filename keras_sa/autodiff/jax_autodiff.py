import contextlib

import jax
import keras


def compile(function):
    return jax.jit(function)


def compile_inference(model, function):
    @jax.jit
    def run(values, *inputs):
        with keras.StatelessScope(zip(model.variables, values)):
            return function(*inputs)

    def call(*inputs):
        # Weights that are no arguments would be constants of the program.
        return run([variable.value for variable in model.variables], *inputs)

    return call


def value_and_gradients(function):
    def run(*tensors):
        def scalar(*tensors):
            result = function(*tensors)
            return (result[0] if isinstance(result, tuple) else result), result

        (_, result), gradients = jax.value_and_grad(
            scalar, argnums=tuple(range(len(tensors))), has_aux=True
        )(*tensors)
        return result, gradients

    return run


def wait(tensors):
    return jax.block_until_ready(tensors)


def float64():
    return jax.enable_x64(True)


def no_gradients():
    return contextlib.nullcontext()
