"""What the fused kernels compute and move, counted exactly; needs no GPU.

    python examples/benchmarks/gpu_work.py

Walks through the tiles of the launches that `triton_launch` makes and counts
what their loops visit, then prints, per shape, the traffic with the GPU's
memory (HBM) beside that of permute + window + un-permute, and the least time
it all can take by the data sheets.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim, `w` window, `R` slots of the tile that a program owns,
`C` slots of a tile that it visits.
"""

import argparse
import dataclasses
import itertools
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

INT32 = FLOAT32 = 4  # bytes

CAPABILITIES = (80, 90)
LENGTHS = (2048, 8192, 32768, 131072)
HEAD_DIMS = (64, 128)


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What a GPU can do at most, per second.

    Attributes:
        name: of the GPU, or where the figures are from.
        flops: of dense bfloat16 matrix products.
        bytes: to and from its memory.
        exponentials: of the special function units; `None` if not known.
        capability: compute capability, which decides the tiles.
    """

    name: str
    flops: float
    bytes: float
    exponentials: float | None = None
    capability: int = 90


# Products (dense) and memory by NVIDIA's data sheets:
# https://www.nvidia.com/en-us/data-center/h200/
# https://www.nvidia.com/en-us/data-center/h100/
# https://www.nvidia.com/en-us/data-center/a100/ (80 GB, SXM).
# Exponentials: 16 per multiprocessor and clock (CUDA programming guide,
# throughput of arithmetic instructions); 3.9e12 on an H100 SXM is also what
# FlashAttention-3 counts with, https://arxiv.org/abs/2407.08608.
DATA_SHEETS = (
    Ceilings("H200", 989e12, 4.8e12, 3.9e12),
    Ceilings("H100 SXM", 989e12, 3.35e12, 3.9e12),
    Ceilings("A100 SXM", 312e12, 2.04e12, 16 * 108 * 1.41e9, 80),
)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one or more kernels.

    Attributes:
        flops: of the matrix products of all tiles visited, dims padded.
        useful_flops: of the visible pairs alone.
        exponentials: one for each pair of the tiles visited.
        memory_bytes: every input read once, every output written once.
        tile_bytes: what all programs together ask for; what exceeds
            `memory_bytes` is served by the caches, if it is.
    """

    flops: int
    useful_flops: float
    exponentials: int
    memory_bytes: int
    tile_bytes: int

    def __add__(self, other):
        return Work(
            *(
                a + b
                for a, b in zip(
                    dataclasses.astuple(self), dataclasses.astuple(other)
                )
            )
        )

    def limits(self, ceilings):
        """Least seconds for each thing that can limit."""
        seconds = {
            "memory": self.memory_bytes / ceilings.bytes,
            "products": self.flops / ceilings.flops,
        }
        if ceilings.exponentials:
            seconds["exponentials"] = self.exponentials / ceilings.exponentials
        return seconds

    def bound(self, ceilings):
        """Least seconds by memory and by products."""
        limits = self.limits(ceilings)
        return max(limits["memory"], limits["products"])


def make_problem(length, head_dim, window=256, **changes):
    """A causal stochastic window in bfloat16, one permutation for all heads."""
    from keras_sa.triton import launch as triton_launch

    settings = {
        "batch_size": 1,
        "length": length,
        "num_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": head_dim,
        "value_dim": head_dim,
        "itemsize": 2,
        "left": window // 2,
        "right": (window - 1) // 2,
        "block_size": 0,
        "is_causal": True,
        "exclude_local": None,
        "scale": head_dim**-0.5,
        "attn_logits_soft_cap": None,
        "order_shape": (1, 1, length),
        "has_sinks": False,
        "capability": 90,
    }
    return triton_launch.Problem(**{**settings, **changes})


def sliding_problem(length, head_dim, window=256, **changes):
    """A causal sliding window."""
    return make_problem(
        length,
        head_dim,
        **{"left": window - 1, "right": 0, "order_shape": None, **changes},
    )


def visited_slots(problem, own, visited, of_keys=True):
    """Slots that the programs of one head visit, those of each tile's last,
    incomplete step included.

    Args:
        problem: `triton_launch.Problem`.
        own: `R`.
        visited: `C`.
        of_keys: whether tiles own queries and visit keys, or the reverse.

    Returns:
        Number of visited slots, each counted once per tile.
    """
    return sum(
        -(-(stop - start) // visited) * visited
        for start, stop in _ranges(problem, own, of_keys)
    )


def _ranges(problem, own, of_keys):
    """The slots `start .. stop - 1` that each tile looks at."""
    p = problem
    before, after = (p.left, p.right) if of_keys else (p.right, p.left)
    for first in range(0, p.length, own):
        last = min(first + own, p.length) - 1
        if p.block_size:
            start = first // p.block_size * p.block_size
            stop = (last // p.block_size + 1) * p.block_size
            if p.is_causal and of_keys:
                stop = last + 1
            elif p.is_causal:
                start = first
        else:
            start, stop = max(first - before, 0), last + after + 1
        yield start, min(stop, p.length)


def visible_pairs(problem):
    """Visible pairs of one head, as a mean over all permutations;
    `exclude_local` is not counted."""
    p = problem
    if p.block_size:
        full, rest = divmod(p.length, p.block_size)
        others = full * p.block_size * (p.block_size - 1) + rest * (rest - 1)
    else:
        others = _at_most(p.length, p.left) + _at_most(p.length, p.right)
    is_one_sided = p.left == 0 or p.right == 0
    if p.is_causal and not (is_one_sided and p.order_shape is None):
        others = others / 2  # a pair of tokens is visible from its later end
    return others + p.length


def _at_most(length, reach):
    """Ordered pairs of slots at distance 1 .. reach, in one direction."""
    reach = min(reach, length - 1)
    return reach * length - reach * (reach + 1) // 2


def count_forward(problem):
    """`Work` of the forward kernel."""
    from keras_sa.triton import launch as triton_launch

    p = problem
    constants = triton_launch.forward(p).constants
    own, visited = constants["R"], constants["C"]
    heads = p.batch_size * p.num_heads
    slots = heads * visited_slots(p, own, visited)
    dims = constants["PADDED_D"] + constants["PADDED_E"]
    row = p.itemsize * (p.head_dim + p.value_dim)  # of key and value
    owned = (row + FLOAT32) * heads * p.length  # query; output and its LSE
    return Work(
        flops=2 * own * slots * dims,
        useful_flops=_useful(p, p.head_dim + p.value_dim),
        exponentials=own * slots,
        memory_bytes=owned + row * _key_rows(p) + _order_bytes(p),
        tile_bytes=owned + row * slots + _tile_orders(p, heads, slots),
    )


def count_query_gradient(problem):
    """`Work` of the kernel of the query's gradient."""
    from keras_sa.triton import launch as triton_launch

    p = problem
    constants = triton_launch.query_gradient(p, False).constants
    own, visited = constants["R"], constants["C"]
    heads = p.batch_size * p.num_heads
    slots = heads * visited_slots(p, own, visited)
    dims = 2 * constants["PADDED_D"] + constants["PADDED_E"]
    row = p.itemsize * (p.head_dim + p.value_dim)
    # Query, its gradient, output and its gradient; LSE, delta.
    owned = (2 * row + 2 * FLOAT32) * heads * p.length
    return Work(
        flops=2 * own * slots * dims,
        useful_flops=_useful(p, 2 * p.head_dim + p.value_dim),
        exponentials=own * slots,
        memory_bytes=owned + row * _key_rows(p) + _order_bytes(p),
        tile_bytes=owned + row * slots + _tile_orders(p, heads, slots),
    )


def count_key_value_gradient(problem):
    """`Work` of the kernel of the gradients of key and value."""
    from keras_sa.triton import launch as triton_launch

    p = problem
    constants = triton_launch.key_value_gradient(p).constants
    own, visited = constants["R"], constants["C"]
    heads = p.batch_size * p.num_heads  # a tile of keys meets all of its group
    slots = heads * visited_slots(p, own, visited, of_keys=False)
    dims = 2 * constants["PADDED_D"] + 2 * constants["PADDED_E"]
    row = p.itemsize * (p.head_dim + p.value_dim)
    # Query and the gradient of output; LSE, delta.
    queries = row + 2 * FLOAT32
    owned = 2 * row * _key_rows(p)  # key, value and their gradients
    return Work(
        flops=2 * own * slots * dims,
        useful_flops=_useful(p, 2 * p.head_dim + 2 * p.value_dim),
        exponentials=own * slots,
        memory_bytes=owned + queries * heads * p.length + _order_bytes(p),
        tile_bytes=owned + queries * slots + _tile_orders(p, heads, slots),
    )


def _useful(problem, dims):
    p = problem
    return 2 * dims * visible_pairs(p) * p.batch_size * p.num_heads


def _key_rows(problem):
    return problem.batch_size * problem.length * problem.num_key_value_heads


def _order_bytes(problem):
    if problem.order_shape is None:
        return 0
    examples, heads, slots = problem.order_shape
    return INT32 * examples * heads * slots


def _tile_orders(problem, heads, slots):
    if problem.order_shape is None:
        return 0
    return INT32 * (heads * problem.length + slots)


def count_backward(problem):
    """`Work` of both backward kernels."""
    return count_query_gradient(problem) + count_key_value_gradient(problem)


def count_work(problem):
    """`Work` of the passes by name."""
    forward, backward = count_forward(problem), count_backward(problem)
    return {
        "forward": forward,
        "backward": backward,
        "forward + backward": forward + backward,
    }


def permutation_bytes(problem):
    """What permuting outside of the kernels moves on top, by pass.

    Forward: query, key and value are read and written in slot order, the
    output is read and written back. Backward: the gradient of the output is
    put in slot order, those of query, key and value are put back.
    """
    p = problem
    rows = p.batch_size * p.length * p.itemsize
    dims = p.head_dim + p.value_dim
    once = rows * dims * (p.num_heads + p.num_key_value_heads)
    return {
        "forward": 2 * once,
        "backward": 2 * once,
        "forward + backward": 4 * once,
    }


def keys_per_query(problem):
    """Keys that the forward kernel computes for a query, in the mean."""
    from keras_sa.triton import launch as triton_launch

    constants = triton_launch.forward(problem).constants
    own, visited = constants["R"], constants["C"]
    slots = visited_slots(problem, own, visited)
    return own * slots / problem.length


def print_table(head, rows):
    """A Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


PASSES = ("forward", "backward")


def work_of(length, dim, capability):
    return count_work(make_problem(length, dim, capability=capability))


def traffic_rows(shapes):
    for length, dim in shapes:
        extra = permutation_bytes(make_problem(length, dim))
        works = [work_of(length, dim, c) for c in CAPABILITIES]
        for name in PASSES:
            fused = works[0][name].memory_bytes
            whole = fused + extra[name]
            yield (
                f"{length:,}",
                dim,
                name,
                f"{fused / 1e6:,.1f}",
                f"{whole / 1e6:,.1f}",
                f"{whole / fused:.2f}",
                *(f"{work[name].tile_bytes / 1e6:,.0f}" for work in works),
            )


def tile_rows(shapes):
    for (length, dim), capability in itertools.product(shapes, CAPABILITIES):
        problem = make_problem(length, dim, capability=capability)
        for name in PASSES:
            work = count_work(problem)[name]
            keys = f"{keys_per_query(problem):.0f}"
            yield (
                f"{length:,}",
                dim,
                capability,
                name,
                keys if name == "forward" else "",
                f"{work.flops / 1e9:,.1f}",
                f"{100 * work.useful_flops / work.flops:.0f} %",
                f"{work.flops / work.memory_bytes:.0f}",
            )


def roofline_rows(shapes):
    for (length, dim), name in itertools.product(shapes, PASSES):
        works = (
            work_of(length, dim, gpu.capability)[name] for gpu in DATA_SHEETS
        )
        yield (
            f"{length:,}",
            dim,
            name,
            *map(describe_limits, works, DATA_SHEETS),
        )


def describe_limits(work, ceilings):
    """The largest limit in microseconds, and all of them as shares of it."""
    limits = work.limits(ceilings)
    name = max(limits, key=limits.get)
    others = ", ".join(
        f"{other} {seconds / limits[name]:.2f}"
        for other, seconds in limits.items()
        if other != name
    )
    return f"{1e6 * limits[name]:,.1f} ({name}; {others})"


def print_counts(shapes):
    """All the tables."""
    print("HBM traffic in MB; causal stochastic window, w = 256, H = K = 16\n")
    print_table(
        (
            *("n", "D", "pass", "fused", "permute + window + un-permute"),
            *("x", *(f"asked for by tiles, sm_{c}" for c in CAPABILITIES)),
        ),
        traffic_rows(shapes),
    )
    print("Tiles: what is computed, and what of it is visible\n")
    print_table(
        (
            *("n", "D", "sm", "pass", "keys per query", "GFLOP", "visible"),
            "FLOP/byte",
        ),
        tile_rows(shapes),
    )
    print("Least microseconds by the data sheets, and the other limits\n")
    print_table(
        ("n", "D", "pass", *(gpu.name for gpu in DATA_SHEETS)),
        roofline_rows(shapes),
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--head-dims", type=int, nargs="+", default=HEAD_DIMS)
    arguments = parser.parse_args()
    os.environ.setdefault("KERAS_BACKEND", "torch")
    print_counts(
        [(n, d) for d in arguments.head_dims for n in arguments.lengths]
    )


if __name__ == "__main__":
    main()
