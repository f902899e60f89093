import contextlib

import torch


def compile(function):
    return function


def compile_inference(model, function):
    return torch.no_grad()(function)


def value_and_gradients(function):
    def run(*tensors):
        tensors = [x.detach().requires_grad_() for x in tensors]
        result = function(*tensors)
        scalar = result[0] if isinstance(result, tuple) else result
        return result, torch.autograd.grad(
            scalar, tensors, allow_unused=True, materialize_grads=True
        )

    return run


def wait(tensors):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tensors


def float64():
    return contextlib.nullcontext()


def no_gradients():
    return torch.no_grad()
