"""Windowed attention through the Triton kernels, on torch and JAX."""

from keras import ops

from keras_sa import backend
from keras_sa import triton as kernels
from keras_sa.ops.windowed import common
from keras_sa.triton import launch


def why_not(arguments):
    objection = launch.why_not(arguments)
    return objection or backend.why_no_triton(arguments.query)


def by_default(arguments):
    return launch.by_default()


def forward(arguments):
    a = arguments
    sinks = None if a.sinks is None else ops.cast(a.sinks, "float32")
    output, lse = kernels.calls().attend_in_window(a, common.order_of(a), sinks)
    return (output, lse) if a.return_lse else output
