"""Other tile sizes than those of the table, timed.

Part of `gpu.py`. The table was made by what compiles without spilling and by
counting traffic; here every kernel is timed with a few rows of its own, the
other kernels unchanged.

Letters: `n` tokens, `H` heads, `D` head dim, `w` window.
"""

import dataclasses
import traceback

import torch
from gpu_attentions import Shape
from gpu_timing import rotation
from gpu_work import print_table

# Slots owned and visited, warps, stages.
CANDIDATES = {
    "forward": (
        (64, 64, 4, 2),
        (64, 32, 4, 2),
        (128, 32, 8, 2),
        (128, 64, 8, 2),
        (128, 64, 8, 3),
    ),
    "query_gradient": (
        (64, 32, 4, 2),
        (64, 64, 8, 2),
        (128, 32, 8, 2),
        (128, 64, 8, 2),
    ),
    "key_value_gradient": (
        (64, 32, 4, 1),
        (64, 32, 8, 2),
        (128, 32, 8, 2),
        (128, 64, 8, 2),
    ),
}
LENGTH, HEAD_DIMS = 32768, (64, 128)
SECONDS_FOR_ONE = 8  # most of it for the compiler
LARGEST_DIFFERENCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}


def run_section(report, budget, stopwatch, device, is_rehearsal):
    """Fills `report` with milliseconds by kernel, head dim and tiles."""
    for dim in HEAD_DIMS[:1] if is_rehearsal else HEAD_DIMS:
        shape = Shape(LENGTH, dim)
        if is_rehearsal:
            shape = Shape(48, 16, heads=2, kv_heads=2, window=24)
        dtype = torch.float16 if is_rehearsal else torch.bfloat16
        calls = Calls(shape, device, dtype)
        for kernel, candidates in CANDIDATES.items():
            figures = report.setdefault(f"{kernel}, {shape}", {})
            for tiles in candidates[: 2 if is_rehearsal else None]:
                what = f"tiles {tiles} of {kernel}, {shape}"
                if budget.has(what, SECONDS_FOR_ONE):
                    figures[str(tiles)] = time_one(
                        calls, kernel, tiles, stopwatch
                    )
            print_kernel(kernel, shape, figures, calls.row(kernel))


def time_one(calls, kernel, tiles, stopwatch):
    """Milliseconds of a pass with some tiles of one of its kernels."""
    try:
        with calls.tiles(kernel, tiles):
            function, inputs = calls.of(kernel)
            difference = calls.difference(kernel)
            if not difference <= LARGEST_DIFFERENCE[calls.dtype]:
                return {"wrong": difference}
            measured = stopwatch.measure(function, inputs)
            return dataclasses.asdict(measured)
    except Exception as error:  # such as too much shared memory
        lines = str(error).strip().splitlines() or [""]
        print(f"{kernel} {tiles}: {lines[0][:200]}", flush=True)
        return {"failure": traceback.format_exc()}


def print_kernel(kernel, shape, figures, row):
    from keras_sa.triton import launch as triton_launch

    chosen = dataclasses.astuple(triton_launch.table_of(row[1])[row[0]])
    of_pass = "forward" if kernel == "forward" else "backward"
    print(f"{kernel}, {shape}: ms of the {of_pass} pass\n")
    print_table(
        ("slots owned, visited, warps, stages", "ms", ""),
        [
            (
                tiles,
                f"{found['device']:.4g}" if "device" in found else "-",
                "in the table" if tiles == str(chosen) else "",
            )
            for tiles, found in figures.items()
        ],
    )


class Calls:
    """The operators of a shape, with their inputs and right results."""

    def __init__(self, shape, device, dtype):
        from keras_sa import backend
        from keras_sa.ops import sample_permutation
        from keras_sa.triton import launch as triton_launch
        from keras_sa.triton import torch as torch_triton_ops

        self.dtype, self.launch = dtype, triton_launch
        self.capability = backend.capability(torch.empty(0, device=device))
        self.dim = triton_launch.padded(shape.head_dim)
        window = shape.window
        self.settings = (window // 2, (window - 1) // 2, 0, True, -1, -1)
        self.settings += (shape.head_dim**-0.5, 0.0)
        order = sample_permutation(shape.length, seed=7).to(device)
        self.order = order[None, None]
        self.ops = torch_triton_ops
        self.inputs = rotation(
            lambda seed: self._with_results(
                shape.make_inputs(seed, device, dtype)
            ),
            device,
        )
        self.right = {kernel: self._run(kernel) for kernel in CANDIDATES}

    def _with_results(self, tensors):
        output, lse = self.ops.windowed_attention(
            *tensors, self.order, None, *self.settings
        )
        return *tensors, output, lse, torch.randn_like(output)

    def of(self, kernel):
        """The pass of a kernel as a function, and inputs in turn."""
        if kernel == "forward":
            return self.forward, [x[:3] for x in self.inputs]
        return self.backward, self.inputs

    def forward(self, query, key, value):
        return self.ops.windowed_attention(
            query, key, value, self.order, None, *self.settings
        )

    def backward(self, query, key, value, output, lse, upstream):
        return self.ops.windowed_attention_gradients(
            query,
            key,
            value,
            self.order,
            output,
            lse,
            upstream,
            None,
            *self.settings,
        )

    def _run(self, kernel):
        function, inputs = self.of(kernel)
        return function(*inputs[0])

    def difference(self, kernel):
        """From the results with the table's tiles, relative to the largest."""
        return max(
            ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()
            for a, b in zip(self._run(kernel), self.right[kernel])
        )

    def row(self, kernel):
        """The key of a kernel in the table, and the GPU's capability."""
        return (kernel, 2, self.dim), self.capability

    def tiles(self, kernel, tiles):
        """A context in which a kernel has other tiles."""
        return OtherTiles(self.launch, *self.row(kernel), tiles)


class OtherTiles:
    """Puts a row into the table of a GPU and takes it out again."""

    def __init__(self, launch, row, capability, tiles):
        self.table, self.row = launch.table_of(capability), row
        self.tiles = launch.Configuration(*tiles)

    def __enter__(self):
        self.before = self.table[self.row]
        self.table[self.row] = self.tiles

    def __exit__(self, *error):
        self.table[self.row] = self.before
