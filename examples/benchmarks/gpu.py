"""Everything about the Triton kernels that only a GPU can settle, in one run.

    python examples/benchmarks/gpu.py
    python examples/benchmarks/gpu.py --sections roofline    # needs no GPU
    python examples/benchmarks/gpu.py --rehearse             # on a CPU, tiny

Numerics against float64, timings against full causal attention and
FlexAttention with the same mask, other tile sizes than the table's, a roofline
by measured ceilings, and the targets. Prints Markdown as it goes and writes
all figures as JSON. A section that fails prints its traceback, and the next
one runs. An attention whose numerics are wrong gets no figure.

Needs torch, triton and keras; jax and jax_triton add a section. For a machine
without a network, fetch keras and what it needs elsewhere (pure Python but
for h5py, ml_dtypes and optree) and install it from the folder:

    pip download keras --only-binary=:all: --python-version 3.12 -d wheels
    pip install --no-index --find-links wheels keras
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

SECTIONS = (
    "environment",
    "ceilings",
    "numerics",
    "timings",
    "decoding",
    "tiles",
    "jax",
    "roofline",
    "targets",
    "paper",
)
# Of the budget, what each section may use up at most, from the start.
SHARES = {
    "numerics": 0.35,
    "timings": 0.7,
    "decoding": 0.75,
    "tiles": 0.9,
    "jax": 1.0,
}
PACKAGES = ("torch", "triton", "keras", "numpy", "jax", "jaxlib", "jax-triton")
CLOCKS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit"


class Run:
    """One run: its options, its report, and the time that is left."""

    def __init__(self, options):
        self.options = options
        self.is_rehearsal = options.rehearse
        self.start = time.monotonic()
        self.report = {
            "sections": self._earlier(),
            "failures": {},
            "skipped": [],
        }
        self.has_gpu = False
        self.device = "cpu"

    def _earlier(self):
        """Of some sections only, the figures join those of an earlier run."""
        path = self.options.output
        if set(self.options.sections) == set(SECTIONS) or not path.exists():
            return {}
        return json.loads(path.read_text("utf-8"))["sections"]

    def section(self, name):
        """The figures of a section, filled so far."""
        return self.report["sections"].setdefault(name, {})

    def budget(self, name):
        from examples.benchmarks.gpu_timing import Budget

        seconds = self.options.budget_seconds * SHARES[name]
        budget = Budget(seconds - (time.monotonic() - self.start))
        budget.skipped = self.report["skipped"]
        return budget

    def stopwatch(self):
        from examples.benchmarks.gpu_timing import Stopwatch

        return Stopwatch(self.device, self.is_rehearsal)

    def write(self):
        path = self.options.output
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.report, indent=1), "utf-8")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--sections", nargs="+", default=SECTIONS, choices=SECTIONS
    )
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=420,
        help="of the whole run; what is not measured by then is listed",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        help="default: results/gpu.json, or results/gpu_rehearsal.json. "
        "Some\nsections alone add to what the file holds",
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="the whole script in Triton's interpreter, with tiny shapes; "
        "its times mean nothing",
    )
    options = parser.parse_args()
    if options.output is None:
        name = "gpu_rehearsal.json" if options.rehearse else "gpu.json"
        options.output = pathlib.Path("results", name)
    return options


def prepare(options):
    """What must stand before torch, triton and keras are imported."""
    os.environ["KERAS_BACKEND"] = "torch"
    if options.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["KERAS_TORCH_DEVICE"] = "cpu"
        os.environ["JAX_PLATFORMS"] = "cpu"


def find_device(run):
    """Looks for a GPU, unless all that is wanted does without."""
    if run.is_rehearsal or set(run.options.sections) <= {"roofline", "paper"}:
        return
    import torch

    run.has_gpu = torch.cuda.is_available()
    run.device = "cuda" if run.has_gpu else "cpu"


def environment(run):
    report = run.section("environment")
    now = datetime.datetime.now(datetime.UTC)
    report["date"] = now.isoformat(timespec="seconds")
    report["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            report[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            report[package] = "not installed"
    if run.has_gpu:
        describe_gpu(report)
    for name, value in report.items():
        print(f"- {name}: {value}")


def describe_gpu(report):
    import torch

    properties = torch.cuda.get_device_properties(0)
    report["card"] = properties.name
    report["capability"] = 10 * properties.major + properties.minor
    report["multiprocessors"] = properties.multi_processor_count
    report["memory GiB"] = round(properties.total_memory / 2**30, 1)
    report["L2 MiB"] = round(getattr(properties, "L2_cache_size", 0) / 2**20)
    report["cuda"] = torch.version.cuda
    report["cudnn"] = torch.backends.cudnn.version()
    if shutil.which("nvidia-smi"):
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        report[CLOCKS] = done.stdout.strip()


def ceilings(run):
    from examples.benchmarks.gpu_timing import measure_copy
    from examples.benchmarks.gpu_timing import measure_products

    report = run.section("ceilings")
    stopwatch = run.stopwatch()
    megabytes, size = (4, 64) if run.is_rehearsal else (2048, 8192)
    report["bytes"] = measure_copy(stopwatch, run.device, megabytes)
    report["flops"] = measure_products(stopwatch, run.device, size)
    print(f"- copy: {report['bytes'] / 1e9:,.0f} GB/s")
    print(f"- bfloat16 products: {report['flops'] / 1e12:,.1f} TFLOP/s")


def numerics(run):
    from examples.benchmarks import gpu_numerics

    gpu_numerics.run_section(
        run.section("numerics"),
        run.budget("numerics"),
        run.device,
        run.is_rehearsal,
    )


def timings(run):
    from examples.benchmarks import gpu_timings

    gpu_timings.run_section(
        run.section("timings"),
        run.budget("timings"),
        run.stopwatch(),
        run.device,
        run.is_rehearsal,
    )


def decoding(run):
    from examples.benchmarks import gpu_decoding

    gpu_decoding.run_section(
        run.section("decoding"),
        run.budget("decoding"),
        run.stopwatch(),
        run.device,
        run.is_rehearsal,
    )


def tiles(run):
    from examples.benchmarks import gpu_tiles

    gpu_tiles.run_section(
        run.section("tiles"),
        run.budget("tiles"),
        run.stopwatch(),
        run.device,
        run.is_rehearsal,
    )


def jax(run):
    from examples.benchmarks import gpu_jax

    gpu_jax.run_section(run.section("jax"), run.budget("jax"), run.is_rehearsal)


def roofline(run):
    from examples.benchmarks import gpu_work

    gpu_work.print_counts(
        [(n, d) for d in gpu_work.HEAD_DIMS for n in gpu_work.LENGTHS]
    )
    measured = run.section("ceilings")
    if "flops" in measured:
        from examples.benchmarks import gpu_report

        capability = run.section("environment").get("capability", 90)
        rows = gpu_report.roofline(run.section("timings"), measured, capability)
        run.section("roofline")["rows"] = rows
        gpu_report.print_roofline(rows)


def targets(run):
    from examples.benchmarks import gpu_report

    rows = gpu_report.targets(
        run.section("timings"), run.section("roofline").get("rows", [])
    )
    run.section("targets")["rows"] = rows
    gpu_report.print_targets(rows)


def paper(run):
    from examples.benchmarks import gpu_report

    gpu_report.print_paper(run.section("timings"))


def run_section(run, name):
    """Runs one section; a failure is printed and noted."""
    elapsed = time.monotonic() - run.start
    print(f"\n## {name} ({elapsed:.0f} s)\n", flush=True)
    run.report["sections"][name] = {}
    try:
        globals()[name](run)
    except Exception:
        run.report["failures"][name] = traceback.format_exc()
        print(run.report["failures"][name], flush=True)
    sys.stdout.flush()
    run.write()


def main():
    options = parse_arguments()
    prepare(options)
    run = Run(options)
    find_device(run)
    needs_gpu = set(options.sections) - {"environment", "roofline", "paper"}
    if needs_gpu and not run.has_gpu and not run.is_rehearsal:
        sys.exit(
            "No GPU found. Without one: --rehearse, or --sections roofline."
        )
    for name in SECTIONS:
        if name in options.sections:
            run_section(run, name)
    for what in run.report["skipped"]:
        print(f"skipped: {what}")
    failures = list(run.report["failures"])
    print(f"\nsections that failed: {', '.join(failures) or 'none'}")
    print(f"{time.monotonic() - run.start:.0f} s; figures in {options.output}")
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
