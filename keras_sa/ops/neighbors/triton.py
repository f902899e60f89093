"""Attention to neighbors through the Triton kernel, on torch and JAX."""

from keras import ops

from keras_sa import backend
from keras_sa import triton as kernels
from keras_sa.triton import launch


def why_not(arguments):
    a = arguments
    if a.alibi_slopes is not None:
        return "`triton` has no alibi_slopes."
    if a.return_lse or a.dropout:
        return "`triton` has no log-sum-exp and no dropout of neighbors."
    if a.neighbors.shape[0] != 1 or a.neighbors.shape[1] != 1:
        return "`triton` has one list of neighbors for all heads."
    if backend.need_gradients(a.query, a.key, a.value, a.sinks):
        return "`triton` has no gradients of attention to neighbors."
    return launch.why_not_rows(a) or backend.why_no_triton(a.query)


def by_default(arguments):
    return launch.by_default()


def forward(arguments):
    a = arguments
    sinks = None if a.sinks is None else ops.cast(a.sinks, "float32")
    neighbors = a.neighbors[0, 0]  # [T, m]
    return kernels.calls().attend_to_neighbors(a, neighbors, sinks), None
