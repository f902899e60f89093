"""Compiles every Triton kernel ahead of time and prints what it takes.

    python examples/benchmarks/kernel_resources.py
    python examples/benchmarks/kernel_resources.py --capabilities 90 --dims 128

Needs Triton and no GPU. Registers (per thread), stack and shared memory (bytes
per program) are read from the machine code, as are the widest loads and the
tensor-core instructions (HGMMA: of a warp group, sm_90; HMMA: of a warp). A
stack that is not empty means spilled registers.
"""

import argparse
import dataclasses
import itertools
import pathlib
import re
import subprocess
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from keras_sa.triton import kernels as triton_kernels
from keras_sa.triton import launch as triton_launch

KERNELS = ("forward", "query_gradient", "key_value_gradient", "decode")
CAPABILITIES = (80, 90)
TRITON_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
SCALARS = ("length", "left", "right", "block_size", "num_new", "num_neighbors")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes; see the top of the file."""

    registers: int
    stack: int
    shared_memory: int
    wide_loads: int
    warp_group_products: int
    warp_products: int


def make_problem(head_dim, dtype, capability, **changes):
    """A causal stochastic window with grouped heads: the usual case."""
    arguments = {
        "batch_size": 1,
        "length": 4096,
        "num_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": head_dim,
        "value_dim": head_dim,
        "itemsize": 4 if dtype == "float32" else 2,
        "left": 64,
        "right": 63,
        "block_size": 0,
        "is_causal": True,
        "exclude_local": None,
        "scale": head_dim**-0.5,
        "attn_logits_soft_cap": None,
        "order_shape": (1, 1, 4096),
        "has_sinks": False,
        "capability": capability,
    }
    return triton_launch.Problem(**{**arguments, **changes})


def launch_of(kernel, problem):
    if kernel == "query_gradient":
        return triton_launch.query_gradient(problem, has_lse_gradient=False)
    if kernel == "decode":
        return triton_launch.decode(problem, num_new=1)
    return getattr(triton_launch, kernel)(problem)


def compile_kernel(kernel, problem, dtype):
    """Compiles one kernel for the GPU of a problem; returns `Resources`."""
    launch = launch_of(kernel, problem)
    function = getattr(triton_kernels, f"{kernel}_kernel")
    signature, attributes = {}, {}
    for place, name in enumerate(function.arg_names):
        signature[name] = argument_type(name, launch.constants, dtype)
        if signature[name].startswith("*"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(function, signature, launch.constants, attributes),
        target=GPUTarget("cuda", problem.capability, 32),
        options={
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
        },
    )
    return read_resources(compiled)


def argument_type(name, constants, dtype):
    if name in constants:
        return "constexpr"
    if name in ("sinks", "log_sum_exp", "lse_gradient", "delta"):
        return "*fp32"
    if name in ("order", "neighbors"):
        return "*i32"
    if name in SCALARS or name.endswith(("_stride", "_per_example")):
        return "i32"
    return "*" + TRITON_NAMES[dtype]


def read_resources(compiled):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "kernel.cubin")
        path.write_bytes(compiled.asm["cubin"])
        usage = run_tool("-res-usage", path)
        code = run_tool("-sass", path)

    def number(name):
        return int(re.search(rf"{name}:(\d+)", usage)[1])

    def count(pattern):
        return len(re.findall(pattern, code))

    return Resources(
        registers=number("REG"),
        stack=number("STACK"),
        shared_memory=compiled.metadata.shared,
        wide_loads=count(r"\b(?:LDG|LDGSTS)\.E\.\S*128"),
        warp_group_products=count(r"\bHGMMA\b"),
        warp_products=count(r"\bHMMA\b"),
    )


def run_tool(option, path):
    tool = pathlib.Path(triton.__file__).parent
    tool = tool / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run(
        [tool, option, path], capture_output=True, text=True, check=True
    ).stdout


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    dims = sorted({dim for _, _, dim in triton_launch.CONFIGURATIONS})
    parser.add_argument("--kernels", nargs="+", default=KERNELS)
    parser.add_argument(
        "--capabilities", nargs="+", type=int, default=CAPABILITIES
    )
    parser.add_argument("--dims", nargs="+", type=int, default=dims)
    parser.add_argument("--dtypes", nargs="+", default=("bfloat16", "float32"))
    arguments = parser.parse_args()
    print(f"triton {triton.__version__}\n")
    print(
        "| kernel | dtype | head dim | sm | tile | warps | stages | registers |"
        " stack | shared | 128-bit loads | HGMMA | HMMA |"
    )
    print("|---" * 13 + "|")
    for kernel, dtype, dim, capability in itertools.product(
        arguments.kernels,
        arguments.dtypes,
        arguments.dims,
        arguments.capabilities,
    ):
        problem = make_problem(dim, dtype, capability)
        launch = launch_of(kernel, problem)
        r = compile_kernel(kernel, problem, dtype)
        tile = f"{launch.constants['R']} x {launch.constants['C']}"
        print(
            f"| {kernel} | {dtype} | {dim} | {capability} | {tile} |"
            f" {launch.num_warps} | {launch.num_stages} | {r.registers} |"
            f" {r.stack} | {r.shared_memory:,} | {r.wide_loads} |"
            f" {r.warp_group_products} | {r.warp_products} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
