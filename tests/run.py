"""Runs the test suite on every Keras backend, one after the other.

    python tests/run.py                          # jax, torch, tensorflow
    python tests/run.py --backends jax -- -k permutation

What follows `--` goes to pytest. On JAX and torch, a second process runs the
GPU kernels in Triton's interpreter (tests/triton).
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "torch", "tensorflow")
KERNEL_BACKENDS = ("jax", "torch")
NO_TESTS = 5  # an exit status of pytest


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--backends", nargs="+", default=BACKENDS, choices=BACKENDS
    )
    parser.add_argument(
        "--workers", default=str(os.cpu_count() or 1), help="of pytest-xdist"
    )
    parser.add_argument("pytest", nargs="*", help="arguments for pytest")
    arguments = parser.parse_args()
    failed = []
    for backend in arguments.backends:
        variables = {"KERAS_BACKEND": backend}
        status = run(variables, arguments.workers, arguments.pytest)
        if backend in KERNEL_BACKENDS and not names_files(arguments.pytest):
            variables = {**variables, "TRITON_INTERPRET": "1"}
            paths = [*arguments.pytest, "tests/triton"]
            status = run(variables, arguments.workers, paths) or status
        if status:
            failed.append(backend)
    if failed:
        sys.exit(f"Tests failed on: {', '.join(failed)}")


def names_files(pytest_arguments):
    """Whether pytest is told what to collect."""
    return any((ROOT / x.split("::")[0]).exists() for x in pytest_arguments)


def run(variables, workers, pytest_arguments):
    """Returns the exit status of pytest under some environment variables."""
    name = " ".join(f"{key}={value}" for key, value in variables.items())
    print(f"\n=== {name}", flush=True)
    environment = {
        **os.environ,
        **variables,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Two workers on two cores: a thread each.
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-n", workers, "-q"]
    start = time.monotonic()
    status = subprocess.run(
        [*command, *pytest_arguments], cwd=ROOT, env=environment
    ).returncode
    if status == NO_TESTS and variables.get("TRITON_INTERPRET"):
        status = 0  # `-k` or `-m` chose none of these
    print(f"=== {name}: {time.monotonic() - start:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    main()
