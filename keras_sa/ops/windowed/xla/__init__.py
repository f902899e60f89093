"""The portable path under XLA, a few chunks at a time, for TensorFlow.

XLA compiles the whole attention, and a loop goes over groups of chunks: the
scores of one step are all that exist at a time. The backward pass computes
them again instead of keeping them. TensorFlow has no fused attention kernel of
its own; this has the memory of one.
"""

from keras_sa import backend
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import recomputation

# The most bytes of scores in a step. On a CPU, cached scores are fast and
# steps cost little: 2 to 8 MB won. A GPU wants steps large enough to fill it.
SCORE_BYTES = {"cpu": 2**22, "gpu": 2**26}
# The most bytes of scores that the portable path may hold on a CPU, before
# memory matters more than speed. It holds several arrays of that size.
MOST_SCORE_BYTES = 2**30


def why_not(arguments):
    return recomputation.why_not(arguments, "xla")


def by_default(arguments):
    """On a GPU, and for memory: on a CPU, TensorFlow's own kernels are faster.
    For a known length: who leaves it open does not want a compilation for
    every length."""
    if not isinstance(arguments.query.shape[1], int):
        return False
    if backend.device_kind(arguments.query) == "gpu":
        return True
    return common.bytes_of_all_scores(arguments) > MOST_SCORE_BYTES


def forward(arguments):
    from keras_sa.ops.windowed.xla import tensorflow

    kind = backend.device_kind(arguments.query)
    return tensorflow.attend(arguments, SCORE_BYTES[kind])
