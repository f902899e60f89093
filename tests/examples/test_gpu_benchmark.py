"""The benchmark for a GPU: a rehearsal on the CPU, and its counts."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from example_runs import run_to_the_end

from examples.benchmarks import gpu_work
from keras_sa.patterns import Stochastic
from tests import testing

needs_torch = pytest.mark.skipif(
    keras.config.backend() != "torch",
    reason="the benchmark for a GPU runs on torch",
)
PROBLEMS = {
    "window": {"left": 12, "right": 11},
    "window_1": {"left": 0, "right": 0},
    "wider_than_the_text": {"left": 400, "right": 400},
    "all_pairs": {"left": 12, "right": 11, "is_causal": False},
    "sliding": {"left": 23, "right": 0, "order_shape": None},
    "grouped": {"left": 12, "right": 11, "num_key_value_heads": 2},
    "per_head": {"left": 70, "right": 70, "order_shape": (2, 4, 300)},
    "blocks": {"left": 0, "right": 0, "block_size": 24},
    "blocks_all_pairs": {"block_size": 100, "is_causal": False},
}


def problem_of(name, length=300):
    settings = {"num_heads": 4, "num_key_value_heads": 4, "batch_size": 2}
    return gpu_work.make_problem(
        length, 40, **{**settings, **PROBLEMS[name]}
    )  # head dims are padded to 64


def band(problem):
    """Boolean `[n, n]` over slots: which keys a query may have to look at;
    of a causal block, whose tokens are sorted, those before it."""
    query, key = np.ogrid[: problem.length, : problem.length]
    if problem.block_size:
        mask = query // problem.block_size == key // problem.block_size
        return mask & (key <= query) if problem.is_causal else mask
    ahead = query - key
    return (ahead <= problem.left) & (ahead >= -problem.right)


def slots_by_brute_force(mask, own, visited):
    """Rows in tiles of `own`, columns from the first to the last wanted in
    steps of `visited`."""
    total = 0
    for first in range(0, len(mask), own):
        wanted = np.flatnonzero(mask[first : first + own].any(axis=0))
        column = wanted[0]
        while column <= wanted[-1]:
            total += visited
            column += visited
    return total


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("length", [1, 63, 64, 300])
@pytest.mark.parametrize("tiles", [(64, 64), (64, 32), (16, 32), (32, 16)])
def test_visited_slots(name, length, tiles):
    problem = problem_of(name, length)
    mask = band(problem)
    assert gpu_work.visited_slots(problem, *tiles) == slots_by_brute_force(
        mask, *tiles
    )
    assert gpu_work.visited_slots(
        problem, *tiles, of_keys=False
    ) == slots_by_brute_force(mask.T, *tiles)


@pytest.mark.parametrize("name", PROBLEMS)
def test_visible_pairs(name):
    """The mean over random orders; exact where no order matters."""
    problem = problem_of(name, 60)
    rng = np.random.default_rng(0)
    counts = []
    for _ in range(200):
        order = rng.permutation(problem.length)
        if problem.order_shape is None:
            order = np.arange(problem.length)
        mask = band(dataclasses.replace(problem, is_causal=False))
        if problem.is_causal:
            mask = mask & (order[None, :] <= order[:, None])
        counts.append(mask.sum())
    expected = gpu_work.visible_pairs(problem)
    assert abs(np.mean(counts) - expected) <= 0.02 * expected
    if np.std(counts) == 0:
        assert counts[0] == expected


def test_visible_pairs_are_those_of_patterns():
    problem = gpu_work.make_problem(1000, 64, window=129)
    keys = Stochastic(129).keys_per_token(1000, is_causal=True)
    assert gpu_work.visible_pairs(problem) == pytest.approx(1000 * keys)


def test_work_of_one_tile():
    """Small enough to count by hand: one head, 64 tokens, one tile."""
    problem = gpu_work.make_problem(
        64, 64, num_heads=1, num_key_value_heads=1, capability=80
    )
    forward = gpu_work.count_forward(problem)
    assert forward.flops == 2 * (2 * 64 * 64 * 64)
    assert forward.exponentials == 64 * 64
    rows = 4 * 64 * 64 * 2  # query, key, value, output in bfloat16
    assert forward.memory_bytes == rows + 64 * 4 + 64 * 4  # and LSE, order
    assert forward.tile_bytes == forward.memory_bytes + 64 * 4
    backward = gpu_work.count_backward(problem)
    assert backward.flops == (3 + 4) * (2 * 64 * 64 * 64)
    # Of the query's gradient: q, k, v, o, do; dq. Of the others': q, k, v,
    # do; dk, dv. LSE and delta each, twice, and the order.
    assert backward.memory_bytes == 12 * 64 * 64 * 2 + 6 * 64 * 4
    extra = gpu_work.permutation_bytes(problem)
    assert extra["forward"] == 8 * 64 * 64 * 2
    assert extra["forward + backward"] == 2 * extra["forward"]


@needs_torch
def test_counts_need_no_gpu(tmp_path):
    output = tmp_path / "figures.json"
    printed = run_to_the_end(
        "benchmarks/gpu", "--sections", "roofline", "--output", output
    )
    assert "| 131,072 | 128 | backward |" in printed
    assert json.loads(output.read_text())["failures"] == {}


@needs_torch
def test_rehearsal(tmp_path):
    """Every section runs, nothing fails, and every attention has figures."""
    pytest.importorskip("triton")
    output = tmp_path / "figures.json"
    printed = run_to_the_end("benchmarks/gpu", "--rehearse", "--output", output)
    report = json.loads(output.read_text())
    assert report["failures"] == {} and report["skipped"] == [], printed
    sections = report["sections"]
    assert sections["numerics"]["tasks"] and not sections["numerics"]["failed"]
    for shape in sections["timings"]["shapes"].values():
        for name, figures in shape["attentions"].items():
            assert figures["right"], (name, figures)
            assert figures["forward"]["device"] > 0
    for step in sections["decoding"].values():
        assert all(figures["device"] > 0 for figures in step.values())
    for tiles in sections["tiles"].values():
        assert all(figures["device"] > 0 for figures in tiles.values())
    assert sections["roofline"]["rows"] and sections["targets"]["rows"]
    if "skipped" not in sections["jax"]:
        assert sections["jax"]["status"] == 0, printed


@needs_torch
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in testing.CASES
        if case.top_k is None and case.attention_mask == "none"
    ],
    ids=str,
)
def test_oracle_is_that_of_the_tests(case):
    import torch

    from examples.benchmarks import gpu_numerics
    from examples.benchmarks.gpu_oracle import relative_error

    inputs = testing.make_inputs(case)
    expected = testing.oracle(case, inputs)
    found = gpu_numerics.run_oracle(case, inputs, torch.float64, "cpu")
    names = {"output": expected.output, "lse": expected.lse}
    for name, exact in {**names, **expected.gradients}.items():
        assert relative_error(found[name], torch.as_tensor(exact)) < 1e-12, name


@needs_torch
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_wrong_attention_is_found(is_whole):
    import torch

    from examples.benchmarks import gpu_attentions

    shape = gpu_attentions.Shape(70, 16, heads=2, kv_heads=1, window=20)
    attentions = gpu_attentions.Attentions(shape, "cpu", torch.float32)
    inputs = shape.make_inputs(0, "cpu", torch.float32, requires_grad=True)
    for window, is_right in ((20, True), (21, False)):
        attention = gpu_attentions.Attention(
            attentions.window(window_size=window, implementation="portable"),
            ((1, attentions.visible()),),
        )
        errors = gpu_attentions.check(attention, inputs, is_whole)
        assert gpu_attentions.is_right(errors, "float32") == is_right, errors


@needs_torch
def test_stopwatch_of_a_gpu(monkeypatch):
    """Its calls, with a clock of our own in place of a GPU's."""
    import torch

    from examples.benchmarks import gpu_timing

    now = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.time = now[0]

        def elapsed_time(self, end):
            return end.time - self.time

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    seen = []

    def function(x):
        seen.append(x)
        now[0] += 3.0

    stopwatch = gpu_timing.Stopwatch("cuda")
    measured = stopwatch.measure(function, [(0,), (1,), (2,)])
    assert measured.device == 3.0 and measured.repeats == 20
    assert measured.eager >= measured.device
    assert set(seen[-3:]) == {0, 1, 2}


@needs_torch
@pytest.mark.parametrize("length", [128, 300, 1024])
def test_blocks_of_the_rival_cover_the_window(length):
    """FlexAttention skips the blocks that its mask does not name."""
    import torch

    from examples.benchmarks import gpu_attentions

    shape = gpu_attentions.Shape(length, 16)
    order = torch.randperm(length)
    mask = gpu_attentions.band_mask(shape, order)
    blocks = mask.to_dense()[0, 0].bool().numpy()
    wanted = band(gpu_work.make_problem(length, 16))
    size = gpu_attentions.FLEX_BLOCK
    for row, column in np.ndindex(blocks.shape):
        part = wanted[
            row * size : (row + 1) * size, column * size : (column + 1) * size
        ]
        assert blocks[row, column] == part.any()
