"""Command lines are read when a script runs, and before Keras is imported."""

import subprocess
import sys

from example_runs import EXAMPLES
from example_runs import ROOT

SCRIPTS = [*EXAMPLES.rglob("run.py"), EXAMPLES / "pretrain" / "compare.py"]
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
assert not {"keras", "jax", "torch", "tensorflow"} & set(sys.modules)
"""


def test_importing_a_script_reads_no_arguments_and_imports_no_keras():
    assert len(SCRIPTS) == 12
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in SCRIPTS
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
