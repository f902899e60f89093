import jax


def compile(function):
    return jax.jit(function)


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
