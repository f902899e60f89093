"""What windowed attentions share that go a few chunks at a time.

Their backward pass computes the scores again instead of keeping them.
"""

import dataclasses

from keras_sa.ops import _softmax
from keras_sa.ops.windowed import portable

# The arguments that may be tensors: with a gradient, and without. All others
# are constants of a compiled program.
_FLOATS = ("query", "key", "value", "scale", "sinks")
_OTHERS = ("permutation", "padding_mask", "attention_mask")


def why_not(arguments, name):
    if arguments.dropout:
        return (
            f"`{name}` has no dropout: its backward pass computes the weights "
            "again and would draw others."
        )
    if not isinstance(arguments.logit_soft_cap, (int, float, type(None))):
        return (
            f"`{name}` has no logit_soft_cap that is a tensor: pass a number."
        )
    return None


def split(arguments):
    """What is a tensor in the arguments, and what a program is compiled for.

    Returns:
        dict of the tensors that may have a gradient, dict of the others, and
        the arguments without them, which are hashable.
    """
    floats, others = _tensors(arguments, _FLOATS), _tensors(arguments, _OTHERS)
    static = dataclasses.replace(
        arguments, seed=None, **dict.fromkeys((*floats, *others))
    )
    return floats, others, static


def _tensors(arguments, names):
    values = {name: getattr(arguments, name) for name in names}
    constants = (int, float, type(None))
    return {k: v for k, v in values.items() if not isinstance(v, constants)}


def bytes_of_scores(arguments, chunks):
    """Bytes of the scores of a chunk, for one key/value head."""
    dtype = _softmax.compute_dtype(arguments.query.dtype)
    scores = portable.num_groups(arguments) * chunks.size * chunks.keys
    return scores * (8 if dtype == "float64" else 4)


def bytes_of_all_scores(arguments):
    """Bytes of the scores that the portable path holds; 0 if the size of the
    batch is unknown."""
    chunks = portable.choose_chunks(arguments)
    batch_size, length, num_kv_heads = arguments.key.shape[:3]
    num_chunks = portable.num_chunks_of(length, chunks)
    rows = (batch_size or 0) * num_kv_heads
    return rows * num_chunks * bytes_of_scores(arguments, chunks)
