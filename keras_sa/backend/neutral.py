"""Answers of a framework that needs nothing special."""

from keras import ops

# How many are found by one maximum after the other.
_FEW = 4


def is_tracing():
    return False


def is_transforming():
    return False


def is_in_backward():
    return False


def need_gradients(*tensors):
    return False


def gives_memory_back():
    return True


def peak_bytes_of_device(call, tensor):
    return None


def top_k(x, k):
    if k > _FEW:
        return ops.top_k(x, k)
    # One maximum after the other is several times faster for a few.
    column = ops.arange(ops.shape(x)[-1], dtype="int32")
    values, indices = [], []
    for _ in range(k):
        highest = ops.amax(x, axis=-1, keepdims=True)
        places = ops.where(x == highest, column, ops.shape(x)[-1])
        index = ops.amin(places, axis=-1, keepdims=True)
        x = ops.where(column == index, -float("inf"), x)
        values.append(highest)
        indices.append(index)
    return ops.concatenate(values, axis=-1), ops.concatenate(indices, axis=-1)
