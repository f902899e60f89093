"""Attention to neighbours through the Triton kernel, on torch and JAX."""

from keras import ops

from keras_sa import backend
from keras_sa import triton as kernels
from keras_sa.triton import launch


def why_not(arguments):
    a = arguments
    if a.alibi_slopes is not None:
        return "`triton` has no alibi_slopes."
    if backend.need_gradients(a.query, a.key, a.value, a.sinks):
        return "`triton` has no gradients of attention to neighbours."
    return launch.why_not_rows(a) or backend.why_no_triton(a.query)


def by_default(arguments):
    return launch.by_default()


def forward(arguments):
    a = arguments
    sinks = None if a.sinks is None else ops.cast(a.sinks, "float32")
    neighbors = ops.cast(a.neighbors, "int32")
    return kernels.calls().attend_to_neighbors(a, neighbors, sinks)
