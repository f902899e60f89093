"""Patterns and uses that `ops.attention` is tested with, and its oracle."""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_sa import testing
from keras_sa.ops import attention
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

BATCH, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 6, 5


@keras.saving.register_keras_serializable("tests")
@dataclasses.dataclass(frozen=True)
class Mirror(Pattern):
    """A pattern of one's own: a token, and that of its mirrored rank."""

    width: int = 1

    def neighbors(self, length, *, is_causal=False, seed=0, positions=None):
        if positions is None:
            positions = ops.arange(length, dtype="int32")
        far = 11 - positions[:, None] + ops.arange(self.width, dtype="int32")
        far = ops.where(ops.logical_and(far >= 0, far < length), far, -1)
        # Itself twice: keys count once all the same.
        own = ops.stack([positions, positions], axis=1)
        return ops.concatenate([own, far], axis=1)


WINDOW = SlidingWindow(5)
DILATED = SlidingWindow(3, dilation=4)
RANDOM = Stochastic(6)
BLOCKS = Stochastic(5, neighborhood="block")
PER_HEAD = Stochastic(4, permutation_per="head")
FIRST = GlobalKeys(first=3)
QUESTION = GlobalQueries(last=4)

PATTERNS = {
    str(pattern): pattern
    for pattern in (
        Full(),
        WINDOW,
        DILATED,
        SlidingWindow(50, dilation=3),
        RANDOM,
        BLOCKS,
        PER_HEAD,
        FIRST,
        QUESTION,
        GlobalQueries(first=2),
        BlockRouted(4, 2),
        Mirror(3),
        WINDOW | FIRST,
        SlidingWindow(2) | SlidingWindow(7),
        WINDOW | DILATED,
        DILATED | SlidingWindow(4, dilation=6) | SlidingWindow(2),
        RANDOM | WINDOW,
        RANDOM | Stochastic(3),
        PER_HEAD | BLOCKS | WINDOW,
        FIRST | GlobalKeys(first=1) | GlobalQueries(first=2),
        QUESTION | WINDOW | GlobalQueries(first=1),
        WINDOW | RANDOM | FIRST | QUESTION,
        PER_HEAD | FIRST | DILATED | QUESTION,
        Mirror(2) | WINDOW | FIRST,
        Mirror(2) | RANDOM | QUESTION,
        WINDOW | Full(),
        RANDOM + WINDOW,
        (RANDOM | FIRST) + (WINDOW | FIRST),
        BlockRouted(4, 2) + RANDOM + Stochastic(3),
        GatedSum(WINDOW),
    )
}


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Inputs of one attention, in numpy; as `testing.Runner` wants them."""

    differentiable: dict
    output_weight: np.ndarray
    lse_weight: np.ndarray
    padding_mask: np.ndarray | None = None
    attention_mask: np.ndarray | None = None


def make_tensors(pattern, length, padding="none", masked=False, sinks=False):
    random = np.random.default_rng(7)
    shapes = {
        "query": (BATCH, length, HEADS, HEAD_DIM),
        "key": (BATCH, length, KV_HEADS, HEAD_DIM),
        "value": (BATCH, length, KV_HEADS, VALUE_DIM),
    }
    if sinks:
        shapes["sinks"] = (HEADS,)
    if "gates" in pattern.needs():
        for index in range(len(pattern.terms)):
            shapes[f"gate_{index}"] = (BATCH, length, HEADS, 1)
    rank = np.arange(length)
    count = np.array([[length], [length * 2 // 3]])
    masks = {
        "none": None,
        "right": rank < count,
        "left": rank >= length - count,
        "ragged": random.random((BATCH, length)) < 0.7,
        "empty": rank < count * [[1], [0]],
    }
    return Tensors(
        {name: random.normal(size=shape) for name, shape in shapes.items()},
        random.normal(size=(BATCH, length, HEADS, VALUE_DIM)),
        random.normal(size=(BATCH, length, HEADS)),
        masks[padding],
        random.random((BATCH, length, length)) < 0.6 if masked else None,
    )


def attend(pattern, tensors, implementation=None, **options):
    """A function of the tensors, for `testing.Runner`."""
    return_lse = "gates" not in pattern.needs()

    def compute(query, key, value, sinks=None, **gates):
        return attention(
            query,
            key,
            value,
            pattern,
            seed=5,
            padding_mask=tensors.padding_mask,
            attention_mask=tensors.attention_mask,
            sinks=sinks,
            gates=list(gates.values()) or None,
            return_lse=return_lse,
            implementation=implementation,
            **options,
        )

    return compute


def assert_equals_oracle(pattern, tensors, dtype="float32", **options):
    """Values and gradients are those of the dense oracle in float64."""
    with_lse = "gates" not in pattern.needs()
    results = [
        testing.run_with_gradients(
            attend(pattern, tensors, implementation, **options),
            tensors,
            precision,
            with_lse,
        )
        for implementation, precision in (
            (None, dtype),
            ("dense", "float64"),
            ("dense", "float32"),
        )
    ]
    testing.assert_close_to_oracle(*results, dtype, scale=4.0)
