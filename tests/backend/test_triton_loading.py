"""Triton beside TensorFlow in one process."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed",
    )
    for package in ("tensorflow", "triton")
]
COMPILE = """
import sys
sys.path.append("examples")
from benchmarks import kernel_resources
problem = kernel_resources.make_problem(64, "bfloat16", 80)
print(kernel_resources.compile_kernel("forward", problem, "bfloat16"))
"""


def run(program):
    environment = dict(os.environ)
    environment.pop("TRITON_CACHE_DIR", None)  # jax_triton empties it
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_triton_loads_and_compiles_after_tensorflow():
    result = run(
        # Not torch after TensorFlow: torch's own import of Triton crashes.
        "import keras, tensorflow\n"
        "from keras_sa import triton as triton_loading\n"
        "triton_loading.load()\n" + COMPILE
    )
    assert result.returncode == 0, result.stderr
    assert "stack=0" in result.stdout


def test_the_flags_are_put_back():
    from keras_sa import triton as triton_loading

    flags = sys.getdlopenflags()
    triton_loading.load()
    assert sys.getdlopenflags() == flags
    assert "triton" in sys.modules
