"""Shared cases and assertions for tests and benchmarks.

One list of cases, `CASES`, and one oracle, attention under a mask in numpy and
float64. Everything is numpy at the surface, so that one file serves every Keras
backend.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim, `w` window, `c` blocks of a sequence.
"""

import contextlib
import dataclasses
import functools
import warnings
from unittest import mock

import keras
import numpy as np
from keras import ops

from keras_sa import backend
from keras_sa.ops import block_routed_attention
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.windowed import api
from keras_sa.ops.windowed.sliding_window import attend_to_window
from keras_sa.ops.windowed.stochastic import attend_in_order
from keras_sa.ops.windowed.stochastic import check_order
from keras_sa.patterns import window_reach
from tests.oracle import attend_in_numpy

# Where each call, or each operation, is compiled. It takes seconds there: what
# does not depend on the backend is tested in fewer combinations.
IS_COMPILED = keras.config.backend() != "torch"

DTYPES = ("float32", "bfloat16", "float16")
# Distance from 1 to the next number.
EPSILON = {
    "float64": 2**-52,
    "float32": 2**-23,
    "float16": 2**-10,
    "bfloat16": 2**-7,
}
# How much worse than the dense oracle in the same dtype an implementation may
# be. Two orders of the same sum differ by about their own error; the largest
# excess over all cases and backends is below 2.
ERROR_FACTOR = 4

# Largest `relative_error` of the fused kernels: of values, and of gradients.
KERNEL_BOUNDS = {
    "float32": (2e-6, 5e-6),
    "float16": (2e-3, 4e-3),
    "bfloat16": (2e-2, 2e-2),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention problem.

    Attributes:
        name: what is special about it.
        batch: `B`.
        length: `n`.
        heads: `H`.
        kv_heads: `K`.
        head_dim: `D`.
        value_dim: `E`.
        window: `w`; the block size if `top_k` is given.
        is_causal: whether tokens attend to no later ones.
        dilation: as in `sliding_window_attention`.
        permutation: `"identity"` (a sliding window), `"shared"` `[n]`,
            `"per_example"` `[B, n]`, `"per_head"` `[B, K, n]` or
            `"per_head_shared"` `[1, K, n]`.
        neighborhood: `"window"` or `"block"`.
        top_k: blocks a token reads: makes this block-routed attention.
        padding: `"none"`, `"right"`, `"left"`, `"ragged"` (holes anywhere) or
            `"empty"` (right, and the last example is all padding).
        attention_mask: `"none"`, `"shared"` `[1, n, n]` or `"per_example"`.
        exclude_local: as in `stochastic_attention`.
        hidden_first: as in `stochastic_attention`: an int, or `"per_example"`
            for numbers of their own.
        hidden_windows: as in `keras_sa.ops.windowed.api.WindowedArguments`.
        scale: factor on the scores, or `None`.
        attn_logits_soft_cap: as in the ops.
        sinks: whether there are attention sinks.
    """

    name: str
    batch: int = 3
    length: int = 37
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    value_dim: int = 5
    window: int = 7
    is_causal: bool = False
    dilation: int = 1
    permutation: str = "identity"
    neighborhood: str = "window"
    top_k: int | None = None
    padding: str = "none"
    attention_mask: str = "none"
    exclude_local: int | None = None
    hidden_first: int | str | None = None
    hidden_windows: tuple = ()
    scale: float | None = None
    attn_logits_soft_cap: float | None = None
    sinks: bool = False

    @property
    def op(self):
        """The name of the op that computes it."""
        if self.top_k is not None:
            return "block_routed_attention"
        if self.permutation == "identity":
            return "sliding_window_attention"
        return "stochastic_attention"

    def __str__(self):
        return self.name


def _sliding(name, **changes):
    return Case(f"sliding-{name}", **changes)


def _window(name, **changes):
    changes = {"permutation": "shared", **changes}
    return Case(f"window-{name}", **changes)


def _block(name, **changes):
    changes = {"permutation": "shared", **changes}
    return Case(f"block-{name}", neighborhood="block", **changes)


def _routed(name, **changes):
    changes = {"window": 5, "top_k": 3, **changes}
    return Case(f"routed-{name}", **changes)


CASES = (
    # Lengths around the window.
    _sliding("one_token", length=1, is_causal=True),
    _sliding("two_tokens", length=2, window=6),
    _sliding("length_is_window_minus_1", length=6, is_causal=True),
    _sliding("length_is_window", length=7),
    _sliding("length_is_window_plus_1", length=8, is_causal=True),
    # Kinds of heads.
    _sliding("one_kv_head", kv_heads=1, window=10, is_causal=True),
    _sliding(
        "no_groups", heads=5, kv_heads=5, head_dim=4, value_dim=9, window=2
    ),
    _sliding("window_1", window=1, is_causal=True),
    # Padding and masks.
    _sliding("right_causal", padding="right", is_causal=True, window=8),
    _sliding("left_sinks", padding="left", sinks=True),
    _sliding(
        "empty_cap", padding="empty", is_causal=True, attn_logits_soft_cap=0.7
    ),
    _sliding(
        "mask_ragged",
        padding="ragged",
        attention_mask="per_example",
        sinks=True,
    ),
    _window("one_token", length=1, is_causal=True),
    _window("even_window", length=31, window=8),
    _window("odd_window_causal", is_causal=True, scale=0.6),
    _window("length_is_window", length=7, is_causal=True),
    _window("per_example_right", permutation="per_example", padding="right"),
    _window(
        "per_head_left_causal",
        permutation="per_head",
        padding="left",
        is_causal=True,
    ),
    _window(
        "per_head_shared", permutation="per_head_shared", kv_heads=4, window=4
    ),
    _window(
        "exclude_local",
        is_causal=True,
        window=9,
        exclude_local=4,
        padding="ragged",
    ),
    _window("a_single_hidden_key", window=1, exclude_local=1),
    # Dilation and hidden keys.
    _sliding("dilated_causal", dilation=3, is_causal=True, window=4),
    _sliding("dilated_even", dilation=2, length=36, window=6, sinks=True),
    _sliding("dilated_beyond", dilation=40, length=9, is_causal=True),
    _sliding(
        "dilated_mask",
        dilation=4,
        padding="ragged",
        attention_mask="per_example",
        attn_logits_soft_cap=1.3,
    ),
    _sliding(
        "dilated_hidden",
        dilation=6,
        window=5,
        padding="left",
        hidden_first="per_example",
        hidden_windows=((7, 6, 1), (36, 36, 4)),
    ),
    _sliding("dilated_hidden_first", dilation=2, hidden_first=4, window=9),
    _sliding("hidden_first_causal", hidden_first=9, is_causal=True),
    _sliding(
        "hidden_first_right",
        hidden_first="per_example",
        padding="right",
        sinks=True,
    ),
    _sliding(
        "hidden_windows",
        window=12,
        is_causal=True,
        hidden_windows=((1, 0, 1), (8, 0, 3)),
        attention_mask="shared",
    ),
    _window(
        "hidden_first_causal",
        is_causal=True,
        window=9,
        hidden_first=6,
        exclude_local=3,
    ),
    _window(
        "hidden_first_per_head",
        permutation="per_head",
        padding="left",
        hidden_first="per_example",
    ),
    _window(
        "hidden_windows",
        permutation="per_example",
        window=15,
        hidden_windows=((9, 9, 3), (2, 2, 1)),
    ),
    _window(
        "mask_sinks_cap",
        attention_mask="shared",
        sinks=True,
        attn_logits_soft_cap=2.0,
    ),
    _window(
        "empty_one_kv_head", padding="empty", kv_heads=1, permutation="per_head"
    ),
    _block("two_tokens", length=2, is_causal=True),
    _block("length_is_blocks", length=35, is_causal=True, value_dim=8),
    _block("length_is_blocks_minus_1", length=34, value_dim=8),
    _block("length_is_blocks_plus_1", length=36, is_causal=True),
    _block(
        "one_kv_head",
        kv_heads=1,
        value_dim=8,
        permutation="per_example",
        is_causal=True,
    ),
    _block(
        "per_head_right", permutation="per_head", padding="right", value_dim=8
    ),
    _block(
        "ragged_causal",
        padding="ragged",
        is_causal=True,
        value_dim=8,
        scale=0.4,
    ),
    _block("empty_sinks", padding="empty", sinks=True, is_causal=True),
    _block(
        "mask_exclude",
        attention_mask="per_example",
        exclude_local=3,
        permutation="per_head",
    ),
    _block(
        "hidden_first",
        hidden_first="per_example",
        is_causal=True,
        padding="ragged",
        hidden_windows=((4, 4, 2),),
    ),
    _routed("causal", is_causal=True),
    _routed("all_blocks", length=11, top_k=4),
    _routed(
        "left_causal", padding="left", is_causal=True, kv_heads=1, sinks=True
    ),
    _routed("empty_cap", padding="empty", attn_logits_soft_cap=1.5, top_k=2),
    _routed(
        "mask_ragged",
        padding="ragged",
        attention_mask="per_example",
        is_causal=True,
    ),
    _routed("own_block_only", top_k=1, heads=3, kv_heads=3),
)


def cases_of(op):
    """The cases that one op computes."""
    return tuple(case for case in CASES if case.op == op)


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """Numpy arrays of a case; `None` for what it does without.

    `hidden_first` is an int, or int32 `[B]`.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray | None
    output_weight: np.ndarray
    lse_weight: np.ndarray
    permutation: np.ndarray | None
    padding_mask: np.ndarray | None
    attention_mask: np.ndarray | None
    hidden_first: np.ndarray | int | None

    @property
    def differentiable(self):
        """The arguments that have gradients, by name."""
        names = ("query", "key", "value", "sinks")
        tensors = {name: getattr(self, name) for name in names}
        return {k: v for k, v in tensors.items() if v is not None}


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """float64 numpy: what an op returned, and the gradients of a loss."""

    output: np.ndarray
    lse: np.ndarray | None
    gradients: dict


def round_to(array, dtype):
    """float32 numbers rounded to what a dtype can hold, still float32."""
    array = np.asarray(array, "float32")
    if dtype != "bfloat16":
        return array.astype(dtype).astype("float32")
    # The upper half of a float32, rounded to the nearest even.
    bits = array.view("uint32")
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view("float32")


def make_padding_mask(kind, batch, length):
    """Boolean `[B, n]`, or `None` for `"none"`."""
    if kind == "none":
        return None
    if kind == "ragged":
        mask = np.random.default_rng(length).random((batch, length)) < 0.7
        mask[0, -1] = True
        return mask
    num_real = length - np.arange(batch) * length // (batch + 1)
    if kind == "empty":
        num_real[-1] = 0
    mask = np.arange(length) < num_real[:, None]
    return mask[:, ::-1].copy() if kind == "left" else mask


def make_permutation(kind, case, rng):
    """int32 permutations of a kind; numpy's own, not those of the package."""
    lead = {
        "identity": None,
        "shared": (),
        "per_example": (case.batch,),
        "per_head": (case.batch, case.kv_heads),
        "per_head_shared": (1, case.kv_heads),
    }[kind]
    if lead is None:
        return None
    order = np.broadcast_to(np.arange(case.length), (*lead, case.length))
    return rng.permuted(order, axis=-1).astype("int32")


@functools.cache
def make_inputs(case, dtype="float32", seed=0):
    """Seeded inputs of a case whose numbers the dtype can hold."""
    rng = np.random.default_rng(seed)
    tokens = (case.batch, case.length)

    def draw(*shape):
        return round_to(rng.normal(size=shape), dtype)

    query = draw(*tokens, case.heads, case.head_dim)
    key = draw(*tokens, case.kv_heads, case.head_dim)
    value = draw(*tokens, case.kv_heads, case.value_dim)
    output_weight = draw(*tokens, case.heads, case.value_dim)
    lse_weight = draw(*tokens, case.heads)
    sinks = draw(case.heads) if case.sinks else None
    padding_mask = make_padding_mask(case.padding, *tokens)
    if padding_mask is not None:
        # The log-sum-exp of padding is nobody's business.
        lse_weight = lse_weight * padding_mask[..., None]
    attention_mask = None
    if case.attention_mask != "none":
        lead = 1 if case.attention_mask == "shared" else case.batch
        attention_mask = rng.random((lead, case.length, case.length)) < 0.6
        attention_mask[:, 2] = False  # one row that attends to nobody
    return Inputs(
        query=query,
        key=key,
        value=value,
        sinks=sinks,
        output_weight=output_weight,
        lse_weight=lse_weight,
        permutation=make_permutation(case.permutation, case, rng),
        padding_mask=padding_mask,
        attention_mask=attention_mask,
        hidden_first=make_hidden_first(case),
    )


def make_hidden_first(case):
    """An int, int32 `[B]`, or `None`."""
    if case.hidden_first != "per_example":
        return case.hidden_first
    return (np.arange(case.batch) * case.length // 4 + 1).astype("int32")


def op_arguments(case, inputs):
    """The keyword arguments of the case's op, without the tensors."""
    arguments = {
        "is_causal": case.is_causal,
        "padding_mask": inputs.padding_mask,
        "attention_mask": inputs.attention_mask,
        "scale": case.scale,
        "attn_logits_soft_cap": case.attn_logits_soft_cap,
    }
    if case.op == "block_routed_attention":
        return arguments | {"block_size": case.window, "top_k": case.top_k}
    arguments["window_size"] = case.window
    if case.op == "stochastic_attention":
        arguments["neighborhood"] = case.neighborhood
        arguments["exclude_local"] = case.exclude_local
        arguments["hidden_first"] = inputs.hidden_first
    else:
        arguments["dilation"] = case.dilation
    return arguments


def run_op(case, inputs, query, key, value, **arguments):
    """Calls the case's op on tensors."""
    arguments = op_arguments(case, inputs) | arguments
    if case.op == "block_routed_attention":
        return block_routed_attention(query, key, value, **arguments)
    is_sliding = case.op == "sliding_window_attention"
    if case.hidden_windows or (is_sliding and inputs.hidden_first is not None):
        return _run_with_hidden(case, inputs, query, key, value, arguments)
    if is_sliding:
        return sliding_window_attention(query, key, value, **arguments)
    return stochastic_attention(
        query, key, value, inputs.permutation, **arguments
    )


def _run_with_hidden(case, inputs, query, key, value, arguments):
    """What is hidden by a call of the package itself."""
    own = ("window_size", "dilation", "neighborhood", "exclude_local")
    own = {k: arguments.pop(k) for k in own if k in arguments}
    own["implementation"] = arguments.pop("implementation", None)
    arguments.pop("hidden_first", None)
    own["hidden_first"] = inputs.hidden_first
    own["hidden_windows"] = case.hidden_windows
    checked = check_inputs(query, key, value, **arguments)
    if case.op == "sliding_window_attention":
        return attend_to_window(checked, **own)
    order = check_order(checked, inputs.permutation)
    return attend_in_order(checked, order, **own)


def objection(case, implementation, dtype="float32"):
    """Why an implementation cannot do the case (without a log-sum-exp), or
    `None`."""
    if case.op == "block_routed_attention":
        return None if implementation == "portable" else "`portable` only."
    table = api.IMPLEMENTATIONS[keras.config.backend()]
    if implementation not in table:
        return f"there is none for {keras.config.backend()}."
    inputs = make_inputs(case)
    checked = check_inputs(
        *(
            ops.convert_to_tensor(x, dtype)
            for x in (inputs.query, inputs.key, inputs.value)
        ),
        is_causal=case.is_causal,
        padding_mask=inputs.padding_mask,
        attention_mask=inputs.attention_mask,
        scale=case.scale,
        attn_logits_soft_cap=case.attn_logits_soft_cap,
        sinks=inputs.sinks,
    )
    hidden_windows = case.hidden_windows
    if case.exclude_local is not None:
        reach = window_reach(case.exclude_local, case.is_causal)
        hidden_windows = (*hidden_windows, (*reach, 1))
    arguments = api.arguments_of(
        checked,
        inputs.permutation,
        reach=window_reach(case.window, case.is_causal),
        window_size=case.window,
        neighborhood=case.neighborhood,
        hidden_first=inputs.hidden_first,
        hidden_windows=hidden_windows,
    )
    return table[implementation].why_not(arguments)


def oracle_mask(case, inputs):
    """Boolean numpy `[B, H, n, n]` of a case: who attends to whom."""
    shape = (case.batch, case.heads, case.length, case.length)
    mask = np.broadcast_to(_pattern_mask(case, inputs), shape)
    mask = mask & ~_hidden(case, inputs)
    if inputs.attention_mask is not None:
        mask = mask & inputs.attention_mask[:, None]
    if inputs.padding_mask is not None:
        real = inputs.padding_mask
        mask = mask & (real[:, :, None] & real[:, None, :])[:, None]
    return np.ascontiguousarray(mask)


def _pattern_mask(case, inputs):
    """The mask of the pattern alone; broadcasts to `[B, H, n, n]`."""
    position = np.arange(case.length)
    distance = position[:, None] - position
    if case.op == "sliding_window_attention":
        left, right = window_reach(case.window, case.is_causal)
        step, rest = np.divmod(distance, case.dilation)
        return (rest == 0) & (step <= left) & (step >= -right)
    if case.op == "block_routed_attention":
        mask = _routed_mask(case, inputs)
    else:
        mask = _stochastic_mask(case, inputs)
    return mask & (distance >= 0) if case.is_causal else mask


def _hidden(case, inputs):
    """The pairs that are hidden besides; broadcasts to `[B, H, n, n]`."""
    position = np.arange(case.length)
    distance = position[:, None] - position
    windows = list(case.hidden_windows)
    if case.exclude_local is not None:
        windows.append((*window_reach(case.exclude_local, case.is_causal), 1))
    hidden = np.zeros((1, 1, case.length, case.length), bool)
    for left, right, dilation in windows:
        is_within = (distance <= left) & (distance >= -right)
        hidden = hidden | (is_within & (distance % dilation == 0))
    if inputs.hidden_first is not None:
        first = np.reshape(inputs.hidden_first, (-1, 1, 1, 1))
        hidden = hidden | (position < first)
    return hidden


def _stochastic_mask(case, inputs):
    """Whether two tokens are in a window of slots, `[B, H, n, n]`."""
    lead = (case.batch, case.kv_heads)
    order = inputs.permutation
    if order.ndim == 2:
        order = order[:, None]
    order = np.broadcast_to(order, (*lead, case.length))
    if inputs.padding_mask is not None:  # padding last
        real = np.broadcast_to(inputs.padding_mask[:, None], order.shape)
        is_padding = ~np.take_along_axis(real, order, axis=-1)
        stable = np.argsort(is_padding, axis=-1, kind="stable")
        order = np.take_along_axis(order, stable, axis=-1)
    slot = np.argsort(order, axis=-1)
    slot = np.repeat(slot, case.heads // case.kv_heads, axis=1)
    row, column = slot[..., :, None], slot[..., None, :]
    if case.neighborhood == "block":
        return row // case.window == column // case.window
    left, right = window_reach(case.window, is_causal=False)
    return (row - column <= left) & (row - column >= -right)


def _routed_mask(case, inputs):
    """Whether a token reads the block of another one, `[B, H, n, n]`."""
    routes = reference_routes(case, inputs)  # [B, n, H, c]
    rank = np.broadcast_to(np.arange(case.length), routes.shape[:2])
    if inputs.padding_mask is not None:
        rank = np.cumsum(inputs.padding_mask, axis=1) - 1
    block = np.maximum(rank, 0) // case.window
    return np.stack(
        [of_one[:, :, own] for of_one, own in zip(routes, block)]
    ).transpose(0, 2, 1, 3)


def reference_routes(case, inputs):
    """Boolean `[B, n, H, c]`: the blocks each query reads, in plain numpy."""
    num_blocks = -(-case.length // case.window)
    routes = np.zeros(
        (case.batch, case.length, case.heads, num_blocks), dtype=bool
    )
    group = case.heads // case.kv_heads
    for example in range(case.batch):
        tokens = np.arange(case.length)
        if inputs.padding_mask is not None:
            tokens = np.flatnonzero(inputs.padding_mask[example])
        blocks = [
            tokens[start : start + case.window]
            for start in range(0, len(tokens), case.window)
        ]
        for head in range(case.heads):
            keys = inputs.key[example, :, head // group].astype("float64")
            means = np.array([keys[block].mean(axis=0) for block in blocks])
            for rank, token in enumerate(tokens):
                query = inputs.query[example, token, head].astype("float64")
                chosen = _choose(
                    means @ query,
                    rank // case.window,
                    case.top_k,
                    case.is_causal,
                )
                routes[example, token, head, chosen] = True
    return routes


def _choose(affinity, own, top_k, is_causal):
    """The token's own block and the best others that it may look at."""
    others = range(own) if is_causal else range(len(affinity))
    others = [block for block in others if block != own]
    others.sort(key=lambda block: -affinity[block])
    return [own, *others[: top_k - 1]]


def run_with_gradients(attend, inputs, dtype, with_lse=True):
    """Runs and differentiates an attention, compiled.

    Args:
        attend: function of the tensors of `inputs.differentiable` (keyword
            arguments) that returns output and log-sum-exp, or the output if
            `with_lse` is false.
        inputs: `Inputs`.
        dtype: dtype of the tensors.
        with_lse: whether the loss reads the log-sum-exp as well.

    Returns:
        `Result`.
    """
    return Runner(attend, inputs, with_lse)(inputs, dtype)


class Runner:
    """An attention and its gradients, compiled once per dtype."""

    def __init__(self, attend, inputs, with_lse=True):
        self.names = tuple(inputs.differentiable)
        self.with_lse = with_lse
        self.compiled = backend.compile(self._compute(attend))

    def _compute(self, attend):
        def compute(output_weight, lse_weight, *tensors):
            def loss(*tensors):
                result = attend(**dict(zip(self.names, tensors)))
                output, lse = result if self.with_lse else (result, None)
                dtype = output_weight.dtype
                total = ops.sum(ops.cast(output, dtype) * output_weight)
                if lse is None:
                    return total, output
                seen = ops.isfinite(lse)
                finite = ops.where(seen, lse, ops.zeros_like(lse))
                return total + ops.sum(finite * lse_weight), output, lse

            return backend.value_and_gradients(loss)(*tensors)

        return compute

    def __call__(self, inputs, dtype):
        wide = "float64" if dtype == "float64" else "float32"
        context = (
            backend.float64()
            if dtype == "float64"
            else contextlib.nullcontext()
        )
        with context:
            weights = (
                ops.convert_to_tensor(x.astype(wide), wide)
                for x in (inputs.output_weight, inputs.lse_weight)
            )
            tensors = (
                ops.convert_to_tensor(x.astype(wide), dtype)
                for x in inputs.differentiable.values()
            )
            (_, *outputs), gradients = self.compiled(*weights, *tensors)
            output, *lse = (_to_numpy(x) for x in outputs)
            gradients = dict(zip(self.names, map(_to_numpy, gradients)))
        return Result(output, lse[0] if lse else None, gradients)


def compiled_on_jax(function):
    """JAX compiles every eager operation by itself, which takes ten times
    longer than all of them at once."""
    if keras.config.backend() != "jax":
        return function
    return backend.compile(function)


def _to_numpy(x):
    """numpy; floats as float64 (numpy has no bfloat16 of its own)."""
    if keras.backend.standardize_dtype(x.dtype) in DTYPES:
        x = ops.convert_to_numpy(ops.cast(x, "float32"))
        return np.asarray(x, "float64")
    return np.asarray(ops.convert_to_numpy(x))


def oracle(case, inputs, dtype="float64", with_lse=True):
    """Value and gradients in numpy, under the case's mask."""
    lse_weight = inputs.lse_weight.astype(dtype)
    output, lse, gradients = attend_in_numpy(
        {k: x.astype(dtype) for k, x in inputs.differentiable.items()},
        oracle_mask(case, inputs),
        inputs.output_weight.astype(dtype),
        lse_weight if with_lse else np.zeros_like(lse_weight),
        padding_mask=inputs.padding_mask,
        scale=case.scale,
        attn_logits_soft_cap=case.attn_logits_soft_cap,
    )
    return Result(output, lse if with_lse else None, gradients)


@functools.cache
def references(case, dtype, with_lse=True):
    """The case's oracle in float64 and in float32, on the same inputs.

    The inputs are already rounded to `dtype`. The oracle in a half dtype
    computes in float32 and rounds what it returns, so the float32 result,
    rounded, is the oracle's result in that dtype.
    """
    inputs = make_inputs(case, dtype)
    exact = oracle(case, inputs, "float64", with_lse)
    return exact, oracle(case, inputs, "float32", with_lse)


def assert_close_to_oracle(result, exact, single, dtype, scale):
    """The error is of the size of the oracle's own error in the same dtype.

    Args:
        result: `Result` of the implementation under test.
        exact: `Result` of the oracle in float64.
        single: `Result` of the oracle in float32.
        dtype: dtype of the inputs.
        scale: largest absolute value among the inputs: an implementation may
            round the weights, which are at most 1, to `dtype`.
    """
    assert_close(
        "output", result.output, exact.output, single.output, dtype, scale
    )
    if exact.lse is not None:
        # Log-sum-exps are float32 whatever the inputs are.
        assert_close("lse", result.lse, exact.lse, single.lse, "float32", scale)
    assert set(result.gradients) == set(exact.gradients)
    for name, gradient in result.gradients.items():
        assert_close(
            f"gradient of {name}",
            gradient,
            exact.gradients[name],
            single.gradients[name],
            dtype,
            scale,
        )


def assert_close(what, actual, exact, single, dtype, scale=1.0):
    """Compares one array with the oracle's; see `assert_close_to_oracle`."""
    assert actual.shape == exact.shape, (what, actual.shape, exact.shape)
    hidden = ~np.isfinite(exact)
    np.testing.assert_array_equal(actual[hidden], exact[hidden], err_msg=what)
    actual, exact, single = actual[~hidden], exact[~hidden], single[~hidden]
    assert np.all(np.isfinite(actual)), f"{what} is not finite"
    if not exact.size:
        return
    own_error = np.abs(round_to(single, dtype) - exact).max()
    largest = max(np.abs(exact).max(), scale)
    # What the oracle has exactly (a weight of 1, whose scores have no gradient)
    # another order of the same sums has up to the roundings of what cancels.
    cancelled = EPSILON["float64" if dtype == "float64" else "float32"]
    allowed = ERROR_FACTOR * (own_error + cancelled * largest)
    allowed += EPSILON[dtype] * largest
    error = np.abs(actual - exact).max()
    assert error <= allowed, (
        f"{what}: error {error:.3g}, allowed {allowed:.3g} (the oracle's own "
        f"error in {dtype} is {own_error:.3g})"
    )


def assert_case(case, implementation, dtype):
    """Value and gradients of one implementation agree with the oracle."""
    inputs = make_inputs(case, dtype)
    is_half = dtype in ("bfloat16", "float16")
    with_lse = implementation != "native_block" and not (
        implementation == "sdpa" and is_half
    )
    run = case_runner(case, implementation, dtype, with_lse)
    exact, single = references(case, dtype, with_lse)
    scale = max(np.abs(x).max() for x in inputs.differentiable.values())
    assert_close_to_oracle(run(inputs, dtype), exact, single, dtype, scale)


def case_runner(case, implementation, dtype, with_lse=True):
    """A `Runner` of the case's op."""
    inputs = make_inputs(case, dtype)

    def attend(**tensors):
        return run_op(
            case,
            inputs,
            return_lse=with_lse,
            implementation=implementation,
            **tensors,
        )

    return Runner(attend, inputs, with_lse)


def relative_error(actual, exact):
    """Largest error relative to the largest number, or to 1 if that is more;
    infinite where not the same numbers are finite.

    Args:
        actual: float64 numpy.
        exact: the same shape.
    """
    finite = np.isfinite(exact)
    if not np.array_equal(actual[~finite], exact[~finite]):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = max(np.abs(exact[finite]).max(), 1.0)
    return float(np.abs(actual[finite] - exact[finite]).max() / largest)


def pad(array, amounts, side):
    """Pads the tokens of each example `[B, n, ...]` to a common length.

    Args:
        array: numpy `[B, n, ...]`.
        amounts: padding of each example; the length grows by the largest.
        side: `"left"` or `"right"`; the rest of the room is on the other.

    Returns:
        padded array, filled with 0, and its boolean mask `[B, m]`.
    """
    batch, length = array.shape[:2]
    total = length + max(amounts)
    padded = np.zeros((batch, total, *array.shape[2:]), array.dtype)
    mask = np.zeros((batch, total), bool)
    for example, amount in enumerate(amounts):
        start = amount if side == "left" else max(amounts) - amount
        padded[example, start : start + length] = array[example]
        mask[example, start : start + length] = True
    return padded, mask


def _attend_sliding(**fixed):
    def attend(query, key, value, permutation, **arguments):
        arguments = {"window_size": 5, **fixed, **arguments}
        return sliding_window_attention(query, key, value, **arguments)

    return attend


def _attend_routed(query, key, value, permutation, **arguments):
    del permutation
    arguments = {"block_size": 5, "top_k": 3, **arguments}
    return block_routed_attention(query, key, value, **arguments)


def _attend_stochastic(**fixed):
    def attend(query, key, value, permutation, **arguments):
        arguments = {"window_size": 5, **fixed, **arguments}
        return stochastic_attention(query, key, value, permutation, **arguments)

    return attend


# Every way through the code, with one signature: functions of query, key,
# value, permutation and the keywords that the ops have in common.
PATHS = {
    "sliding_window": _attend_sliding(),
    "dilated_window": _attend_sliding(dilation=3),
    "stochastic_window": _attend_stochastic(neighborhood="window"),
    "stochastic_block": _attend_stochastic(
        neighborhood="block", implementation="portable"
    ),
    "native_block": _attend_stochastic(
        neighborhood="block", implementation="native_block"
    ),
    "block_routed": _attend_routed,
}


def quantize(model):
    """`quantize("int8")`, without the garbage collection that Keras does for
    every kernel: most of a minute among many modules."""
    with mock.patch("gc.collect"), warnings.catch_warnings():
        # Keras names every layer that has nothing to quantize.
        warnings.filterwarnings("ignore", ".*quantize", UserWarning)
        model.quantize("int8")
