"""Runs the test suite on every Keras backend, one after the other.

    python tests/run.py                          # jax, torch, tensorflow
    python tests/run.py --backends jax -- -k permutation

What follows `--` goes to pytest.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "torch", "tensorflow")


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
    failed = [
        backend
        for backend in arguments.backends
        if run(backend, arguments.workers, arguments.pytest) != 0
    ]
    if failed:
        sys.exit(f"Tests failed on: {', '.join(failed)}")


def run(backend, workers, pytest_arguments):
    """Returns the exit status of pytest on one backend."""
    print(f"\n=== KERAS_BACKEND={backend}", flush=True)
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Two workers on two cores: a thread each.
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-n", workers, "-q"]
    start = time.monotonic()
    status = subprocess.run(
        [*command, *pytest_arguments], cwd=ROOT, env=environment
    ).returncode
    print(f"=== {backend}: {time.monotonic() - start:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    main()
