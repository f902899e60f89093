"""Windowed attention on JAX as a loop along the slots.

A step takes the next slots of all heads and attends with a few chunks. It
hands on what the next step's windows reach back to, and is given what its own
windows reach ahead to. So nothing but the arguments and the output exists at
full length: no copy with heads beside the batch, no scores, neighbors only of
what is ahead. The backward pass computes the scores again.

It is the faster one on a CPU, too. Scores of one step stay in the cache, and
XLA takes the memory of large intermediate arrays from the system at each call.
"""

from keras_sa import backend
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import recomputation

# The most bytes of scores in a step, by measurement on CPUs; a step has one
# chunk of every head at least. A GPU wants steps large enough to fill it.
SCORE_BYTES = {"cpu": 2**21, "gpu": 2**26}
# For fewer steps all chunks at once are as fast on CPUs, or faster.
_FEWEST_STEPS = 3


def why_not(arguments):
    shapes = (*arguments.query.shape, *arguments.key.shape)
    if not all(isinstance(size, int) for size in shapes):
        return "`looped` needs sizes that are known."
    return recomputation.why_not(arguments, "looped")


def by_default(arguments):
    """Where it has some steps to do: few arrays of that size fit in caches."""
    scores = common.bytes_of_all_scores(arguments)
    return scores > _FEWEST_STEPS * _score_bytes(arguments)


def _score_bytes(arguments):
    kind = backend.device_kind(arguments.query)
    return SCORE_BYTES.get(kind, SCORE_BYTES["gpu"])


def forward(arguments):
    from keras_sa.ops.windowed.looped import jax

    return jax.attend(arguments, _score_bytes(arguments))
