import contextlib

import tensorflow as tf


def compile(function):
    return tf.function(function)


def compile_inference(model, function):
    return tf.function(function, jit_compile=model.jit_compile)


def value_and_gradients(function):
    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)
        scalar = result[0] if isinstance(result, tuple) else result
        return result, tape.gradient(
            scalar, list(tensors), unconnected_gradients="zero"
        )

    return run


def wait(tensors):
    return tensors


def float64():
    return contextlib.nullcontext()


def no_gradients():
    return contextlib.nullcontext()
