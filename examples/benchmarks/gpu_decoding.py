"""Times a step of decoding: the neighbors in a window, or the whole cache.

Part of `gpu.py`.

Letters: `S` rows of the cache, `H` query heads, `K` key/value heads, `D` head
dim, `m` neighbors.
"""

import dataclasses
import traceback

import torch
from torch.nn import functional

from examples.benchmarks.gpu_oracle import BOUNDS
from examples.benchmarks.gpu_oracle import relative_error
from examples.benchmarks.gpu_timing import rotation
from examples.benchmarks.gpu_work import print_table

HEADS, KV_HEADS, HEAD_DIM, NEIGHBORS = 32, 8, 128, 256
LENGTHS = (2048, 8192, 32768, 131072)


def run_section(report, budget, stopwatch, device, is_rehearsal):
    """Fills `report` with milliseconds by rows of the cache and name."""
    dtype = torch.float16 if is_rehearsal else torch.bfloat16
    names = ("triton", "portable", "whole cache, SDPA")
    rows = []
    for length in (64,) if is_rehearsal else LENGTHS:
        if not budget.has(f"decoding, {length:,} rows"):
            continue
        result = report.setdefault(f"{length:,}", {})
        count = min(NEIGHBORS, length // 2)
        generator = torch.Generator().manual_seed(length)
        neighbors = torch.randperm(length, generator=generator)[:count]
        neighbors = neighbors.to(device, torch.int32)[None]
        for name in names:
            result[name] = time_one(name, length, neighbors, stopwatch, dtype)
        rows.append((f"{length:,}", *(_cell(result[name]) for name in names)))
    print(
        f"A step of decoding, H={HEADS} K={KV_HEADS} D={HEAD_DIM}, "
        f"{NEIGHBORS} neighbors: device ms (host ms)\n"
    )
    print_table(("rows of the cache", *names), rows)


def _cell(timed):
    if "device" not in timed:
        return "-"
    return f"{timed['device']:.4g} ({timed['host']:.2g})"


def make_inputs(length, device, dtype):
    """A function of a seed: query `[1, 1, H, D]`, caches `[1, S, K, D]`."""

    def make(seed):
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(
            torch.randn(shape, generator=generator, device=device).to(dtype)
            for shape in (
                (1, 1, HEADS, HEAD_DIM),
                (1, length, KV_HEADS, HEAD_DIM),
                (1, length, KV_HEADS, HEAD_DIM),
            )
        )

    return make


def time_one(name, length, neighbors, stopwatch, dtype):
    device = neighbors.device.type
    function = step_function(name, neighbors)
    make = make_inputs(length, device, dtype)
    rows = None if name.startswith("whole") else neighbors[0].long()
    try:
        with torch.no_grad():
            inputs = make(0)
            error = relative_error(function(*inputs), exact_step(inputs, rows))
            if error > BOUNDS[str(dtype)[6:]][0]:
                print(f"decoding, {name}: WRONG by {error:.1e}, no figure")
                return {"error": error}
            measured = stopwatch.measure(function, rotation(make, device))
    except Exception as failure:
        print(f"decoding, {name}, {length:,} rows: {failure}", flush=True)
        return {"failure": traceback.format_exc()}
    return {"error": error, **dataclasses.asdict(measured)}


def step_function(name, neighbors):
    from keras_sa.ops import neighbor_attention

    def whole_cache(query, key, value):
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        output = functional.scaled_dot_product_attention(
            query, key, value, enable_gqa=True
        )
        return output.transpose(1, 2)

    def some_rows(query, key, value):
        return neighbor_attention(
            query,
            key,
            value,
            neighbors,
            scale=HEAD_DIM**-0.5,
            implementation=name,
        )

    return whole_cache if name.startswith("whole") else some_rows


def exact_step(inputs, rows):
    """float64 attention to some rows of the cache, or to all."""
    query, key, value = (x.double() for x in inputs)
    if rows is not None:
        key, value = key[:, rows], value[:, rows]
    group = HEADS // KV_HEADS
    key, value = (x.repeat_interleave(group, dim=2) for x in (key, value))
    scores = torch.einsum("bihd,bjhd->bhij", query, key) * HEAD_DIM**-0.5
    return torch.einsum("bhij,bjhe->bihe", scores.softmax(-1), value)
