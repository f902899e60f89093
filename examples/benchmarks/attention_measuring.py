"""Checks attentions, times them in turn, and measures what bounds them.

Letters: as in `attention_table.py`.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import statistics
import time

import keras
import numpy as np
from keras import ops

import keras_sa
from examples.benchmarks.attention_table import Problem
from keras_sa import backend as keras_backend

# Every attention is right here before it is looked at elsewhere.
SMALL = Problem(batch=2, length=192, heads=2, head_dim=16, window=16)
# A longer text is compared in as many of its rows, drawn at random, if dense
# attention has no more scores than this for them.
ROWS = 512
MOST_SCORES = 2**27
TOLERANCE = 1e-4
# How the reasons begin for which there are no figures.
WRONG, FAILED, MISSING = "wrong", "failed", "missing"
PASSES = ("forward", "both")
# Backward of one product are two, and the scores are computed again.
BACKWARD_PER_FORWARD = 2.5


class WrongResult(Exception):
    """Values or gradients are not those of the oracle."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was measured of one attention.

    Attributes:
        visible_keys: keys that a token attends to, on average.
        flops: of the products, by pass.
        first_call: seconds of the first call, compilation included, by pass.
        seconds: of every round, by pass; no "both" without gradients.
    """

    visible_keys: float
    flops: dict
    first_call: dict
    seconds: dict

    def median(self, of_pass):
        return statistics.median(self.seconds[of_pass])


def ratio(first, second, of_pass):
    """Median over the rounds of first / second."""
    pairs = zip(first.seconds[of_pass], second.seconds[of_pass])
    return statistics.median(x / y for x, y in pairs)


def no_gradients():
    """On torch, a forward pass would remember what gradients need."""
    if keras.config.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def why_not(attention, problem):
    """Why an attention cannot run here, or `None`."""
    package = attention.package
    if package and importlib.util.find_spec(package) is None:
        return f"{MISSING}: {package} is not installed"
    return attention.why_not(problem)


@functools.cache
def _draw(shape, seed):
    random = np.random.default_rng(seed)
    return random.normal(size=shape).astype("float32")


def make_inputs(attention, problem):
    """Tensors of an attention, and weights of the same layout as its output."""
    shape = (problem.batch, problem.length, problem.heads, problem.head_dim)
    if attention.is_layer:
        shape = (*shape[:2], problem.features)
    count = 1 if attention.is_layer else 3
    *tensors, weight = (_draw(shape, seed) for seed in range(count + 1))
    return [ops.convert_to_tensor(x) for x in tensors], weight


class Candidate:
    """One attention for one problem, compiled, and its inputs."""

    def __init__(self, attention, problem, compile):
        self.attention, self.problem = attention, problem
        self.attend = attention.make(problem)
        self.inputs, self.weight = make_inputs(attention, problem)
        self.first_call, self.wait = {}, keras_backend.wait
        self._functions = {"forward": compile(self.attend)}
        if attention.has_backward:
            self._functions["both"] = compile(with_gradients(self.attend))
        self._arguments = self._order(self.inputs)
        self._timed_weight = self._order([self.weight])

    def _order(self, tensors):
        """In the order of axes that the attention takes."""
        tensors = [ops.convert_to_tensor(x) for x in tensors]
        if not self.attention.heads_first:
            return tensors
        tensors = [ops.transpose(x, (0, 2, 1, 3)) for x in tensors]
        is_torch = keras.config.backend() == "torch"
        return [x.contiguous() if is_torch else x for x in tensors]

    @property
    def passes(self):
        return tuple(self._functions)

    def run(self, of_pass, weight=None):
        """Output, or output and gradients."""
        if of_pass == "forward":
            with no_gradients():
                return self.wait(self._functions[of_pass](*self._arguments))
        weight = self._timed_weight if weight is None else weight
        return self.wait(self._functions[of_pass](*weight, *self._arguments))

    def results(self, rows):
        """numpy: output `[B, n, ...]`, and of `rows` loss and gradients."""
        weight = np.zeros_like(self.weight)
        weight[:, rows] = self.weight[:, rows]
        weight = self._order([weight])
        outputs = [self._first(self.run, "forward")]
        if "both" in self.passes:
            outputs += self._first(self.run, "both", weight)
        output, *gradients = (self._to_numpy(x) for x in outputs)
        return output, gradients

    def _to_numpy(self, x):
        x = ops.convert_to_numpy(ops.stop_gradient(x))
        is_swapped = self.attention.heads_first and x.ndim == 4
        return x.swapaxes(1, 2) if is_swapped else x

    def _first(self, run, of_pass, *arguments):
        start = time.perf_counter()
        result = run(of_pass, *arguments)
        self.first_call[of_pass] = time.perf_counter() - start
        return result


def with_gradients(attend):
    """Function of weight and inputs: loss and gradients.

    The loss, a weighted sum of the output, is returned lest a compiler leave
    out what gradients alone do not need.
    """
    # Looked up here: TensorFlow warns of an import in what it traces.
    value_and_gradients = keras_backend.value_and_gradients

    def run(weight, *tensors):
        def loss(*tensors):
            return ops.sum(attend(*tensors) * weight)

        value, gradients = value_and_gradients(loss)(*tensors)
        return [value, *gradients]

    return run


# The oracle.


def row_attention(query, key, value, mask):
    """`dense_attention` of some queries `[B, R, H, D]`."""
    scores = ops.einsum("bihd,bjhd->bhij", query, key) * query.shape[-1] ** -0.5
    weights = ops.softmax(ops.where(mask, scores, -float("inf")), axis=-1)
    return ops.einsum("bhij,bjhe->bihe", weights, value)


def oracle_attention(attend, rows, mask, problem):
    """Function of the same tensors as `attend` that returns its `rows`."""
    mask = ops.convert_to_tensor(mask)

    def dense(query, key, value):
        if len(rows) == problem.length:
            return keras_sa.ops.dense_attention(query, key, value, mask)
        return row_attention(ops.take(query, rows, axis=1), key, value, mask)

    def layer(x):
        return attend.output(dense(*attend.projected(x)))

    return layer if hasattr(attend, "projected") else dense


def rows_to_check(problem):
    rows = np.arange(problem.length, dtype="int32")
    scores_of_a_row = problem.batch * problem.heads * problem.length
    num_rows = min(ROWS, max(MOST_SCORES // scores_of_a_row, 2))
    if problem.length <= num_rows:
        return rows
    random = np.random.default_rng(problem.length)
    middle = random.choice(rows[1:-1], num_rows - 2, replace=False)
    return np.sort([0, *middle, problem.length - 1]).astype("int32")


def mask_of(candidate, rows):
    """Boolean numpy, broadcast to rank 4."""
    inputs = candidate.inputs
    if candidate.attention.is_layer:
        inputs = candidate.attend.projected(*inputs)
    mask = candidate.attention.mask(candidate.problem, rows, *inputs[:2])
    return mask[(None,) * (4 - mask.ndim)]


def check(candidate):
    """Raises `WrongResult` unless values and gradients are the oracle's."""
    rows = rows_to_check(candidate.problem)
    output, gradients = candidate.results(rows)
    oracle = oracle_attention(
        candidate.attend, rows, mask_of(candidate, rows), candidate.problem
    )
    with no_gradients():
        expected = oracle(*candidate.inputs)
    compare("values", output[:, rows], expected)
    if not gradients:
        return
    weight = ops.convert_to_tensor(candidate.weight[:, rows])
    expected = with_gradients(oracle)(weight, *candidate.inputs)
    for received, wanted in zip(gradients, expected):
        compare("gradients", received, wanted)


def compare(what, received, expected):
    expected = ops.convert_to_numpy(ops.stop_gradient(expected))
    error = np.abs(received - expected).max()
    # Not `error > ...`: a NaN is wrong.
    if not error <= TOLERANCE * max(1.0, np.abs(expected).max()):
        raise WrongResult(f"{what}: off by {error:.2g}")


# Arithmetic.


def visible_keys(candidate, chunk=1024):
    """Mean number of keys that a token attends to."""
    length = candidate.problem.length
    total = 0.0
    for start in range(0, length, chunk):
        rows = np.arange(start, min(start + chunk, length), dtype="int32")
        total += len(rows) * length * mask_of(candidate, rows).mean()
    return total / length


def count_flops(attention, problem, visible):
    """Least floating-point operations of the products, by pass."""
    computed = attention.computed_keys
    keys = computed(problem) if computed else visible
    tokens = problem.batch * problem.length
    pairs = tokens * problem.heads * keys
    forward = 2 * pairs * 2 * problem.head_dim
    both = (1 + BACKWARD_PER_FORWARD) * forward
    if attention.is_layer:  # gradients of the input only, as is timed
        projections = 4 * 2 * tokens * problem.features**2
        forward, both = forward + projections, both + 2 * projections
    return {"forward": forward, "both": both}


def measure_products(problem, rounds, compile):
    """Operations per second of float32 products, by their description."""
    heads = problem.batch * problem.heads
    count = -(-problem.length // problem.window) * heads
    window, dim = problem.window, problem.head_dim
    sizes = {
        f"{count} x [{window}, {dim}] @ [{dim}, {window}]": (
            (count, window, dim),
            (count, dim, window),
        ),
        "[1024, 1024] @ [1024, 1024]": ((1024, 1024), (1024, 1024)),
    }
    return {
        name: 2 * np.prod(first) * second[-1] / _product_seconds(*pair)
        for name, (first, second) in sizes.items()
        for pair in [(first, second, rounds, compile)]
    }


def _product_seconds(first, second, rounds, compile):
    function = compile(ops.matmul)
    pair = [ops.convert_to_tensor(_draw(x, 0)) for x in (first, second)]
    keras_backend.wait(function(*pair))
    times = []
    for _ in range(2 * rounds):
        start = time.perf_counter()
        keras_backend.wait(function(*pair))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# Time.


def time_in_turn(candidates, of_pass, rounds):
    """Seconds of every round by name; the candidates are interleaved."""
    candidates = {
        name: candidate
        for name, candidate in candidates.items()
        if of_pass in candidate.passes
    }
    seconds = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            # Untimed, to take back the memory that the one before gave back.
            candidate.run(of_pass)
            start = time.perf_counter()
            candidate.run(of_pass)
            seconds[name].append(time.perf_counter() - start)
    return seconds


@functools.cache
def check_small(attention, compile):
    check(Candidate(attention, SMALL, compile))


def trusted_candidate(attention, problem, compile):
    """A candidate that is right for a small problem and for this one."""
    check_small(attention, compile)
    candidate = Candidate(attention, problem, compile)
    check(candidate)
    return candidate


def trusted_candidates(attentions, problem, compile):
    """Candidates, and the reasons of those that get no figure, by name."""
    candidates, refused = {}, {}
    for attention in attentions:
        reason = why_not(attention, problem)
        if reason is None:
            try:
                candidate = trusted_candidate(attention, problem, compile)
            except WrongResult as error:
                reason = f"{WRONG} {error}"
            except Exception as error:  # printed in place of figures
                reason = f"{FAILED}: {type(error).__name__}: {error}"
        if reason is None:
            candidates[attention.name] = candidate
        else:
            refused[attention.name] = reason
    return candidates, refused


def measure(attentions, problem, rounds, compile):
    """`Figures` by name, and the reasons of those that have none."""
    candidates, refused = trusted_candidates(attentions, problem, compile)
    seconds = {
        of_pass: time_in_turn(candidates, of_pass, rounds) for of_pass in PASSES
    }
    figures = {}
    for name, candidate in candidates.items():
        visible = visible_keys(candidate)
        figures[name] = Figures(
            visible,
            count_flops(candidate.attention, problem, visible),
            candidate.first_call,
            {x: seconds[x][name] for x in candidate.passes},
        )
    return figures, refused
