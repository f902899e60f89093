"""Patterns and uses that `ops.attention` is tested with, and its oracle."""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_sa import backend
from keras_sa.ops import attention
from keras_sa.ops import route_to_blocks
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing
from tests.oracle import attend_in_numpy

BATCH, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 3, 4, 2, 6, 5


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
    count = np.array([[length], [length * 2 // 3], [length // 2]])
    right, left = rank < count, rank >= length - count
    masks = {
        "none": None,
        "left": left,
        "right and left": np.stack([right[0], right[1], left[2]]),
        "ragged": random.random((BATCH, length)) < 0.7,
        "empty": rank < count * [[1], [0], [1]],
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
    """Values and gradients are those of attention in numpy and float64, to
    the error that the same computation has in float32."""
    with_lse = "gates" not in pattern.needs()
    received = testing.run_with_gradients(
        attend(pattern, tensors, **options), tensors, dtype, with_lse
    )
    masks = [
        _mask(term, seed, tensors, options.get("is_causal", False))
        for term, seed in _terms(pattern)
    ]
    exact, single = (
        _oracle(masks, tensors, kind, with_lse, **options)
        for kind in ("float64", "float32")
    )
    testing.assert_close_to_oracle(received, exact, single, dtype, scale=4.0)


def _terms(pattern):
    """`[(term, seed)]` of a gated sum; of another pattern itself alone."""
    if "gates" in pattern.needs():
        return list(zip(pattern.terms, pattern.seeds(5)))
    return [(pattern, 5)]


def _mask(pattern, seed, tensors, is_causal):
    """Boolean numpy `[B, H, n, n]`."""
    padding_mask = tensors.padding_mask
    if padding_mask is not None:
        padding_mask = ops.convert_to_tensor(padding_mask)
    length = tensors.output_weight.shape[1]
    more = {"num_key_value_heads": KV_HEADS}
    if "routes" in pattern.needs():
        query, key = (
            ops.convert_to_tensor(tensors.differentiable[name], "float32")
            for name in ("query", "key")
        )
        more = {
            "routes": route_to_blocks(
                ops.convert_to_tensor(
                    tensors.differentiable["query"], "float32"
                ),
                key,
                block_size=pattern.block_size,
                top_k=pattern.top_k,
                is_causal=is_causal,
                padding_mask=padding_mask,
            )
        }
    more |= {"is_causal": is_causal, "seed": seed, "padding_mask": padding_mask}
    # Compiled: JAX would compile every operation by itself.
    mask = backend.compile(lambda: pattern.mask(length, **more))()
    mask = ops.convert_to_numpy(mask)
    if mask.ndim == 2 + (padding_mask is not None):
        mask = np.expand_dims(mask, -3)
    elif mask.shape[-3] == KV_HEADS:
        mask = np.repeat(mask, HEADS // KV_HEADS, axis=-3)
    mask = np.broadcast_to(mask, (BATCH, HEADS, length, length))
    if tensors.attention_mask is not None:
        mask = mask & tensors.attention_mask[:, None]
    return mask


def _oracle(masks, tensors, dtype, with_lse, **options):
    """`testing.Result` of a sum of attentions, each under a mask."""
    x = {k: v.astype(dtype) for k, v in tensors.differentiable.items()}
    weight = tensors.output_weight.astype(dtype)
    lse_weight = tensors.lse_weight.astype(dtype) * with_lse
    gates = [v for k, v in x.items() if k.startswith("gate_")] or [
        np.ones((1, 1, 1, 1), dtype)
    ]
    total, gradients, lse = 0, {k: np.zeros_like(v) for k, v in x.items()}, None
    for index, (mask, gate) in enumerate(zip(masks, gates)):
        output, lse, parts = attend_in_numpy(
            x,
            mask,
            weight * gate,
            lse_weight,
            padding_mask=tensors.padding_mask,
            scale=options.get("scale"),
            attn_logits_soft_cap=options.get("attn_logits_soft_cap"),
        )
        total = total + gate * output
        for name, part in parts.items():
            gradients[name] += part
        if f"gate_{index}" in x:
            part = (weight * output).sum(-1, keepdims=True)
            gradients[f"gate_{index}"] += part
    return testing.Result(total, lse if with_lse else None, gradients)
