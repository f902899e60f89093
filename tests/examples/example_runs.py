"""Runs an example as a user does, and reads the tables it writes."""

import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

TINY_MODEL = {  # of bytes; compiles fast
    "num_layers": 1,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "hidden_dim": 16,
    "intermediate_dim": 16,
}


def slow_where_compiled(test):
    """Marks a test slow where each of many models takes seconds to compile."""
    on_torch = keras.config.backend() == "torch"
    return test if on_torch else pytest.mark.slow(test)


def run_example(name, *options):
    """A finished process of `examples/<name>.py`."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")]
        ),
    }
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, options)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def run_to_the_end(name, *options):
    """What `examples/<name>.py` printed, if it succeeded."""
    done = run_example(name, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table_rows(path):
    """The cells of all the tables of a file, without their heads."""
    lines = path.read_text("utf-8").splitlines()
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("|") and not line.startswith("|---")
    ]
    return [row for row in rows if row[0] not in ("attention", "pattern")]


def numbers_in(row):
    """The decimal fractions of a row's cells."""
    found = re.findall(r"[-+]?\d+\.\d+|nan|inf", " ".join(row))
    return [float(number) for number in found]


def run_study(study, options, monkeypatch):
    """Runs `study.main()` in this process, on the backend of the tests."""
    monkeypatch.setenv("KERAS_BACKEND", keras.config.backend())
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, options)])
    study.main()


def table_by_name(text):
    """`{first cell: {column: cell}}` of a table in Markdown."""
    lines = [x for x in text.splitlines() if x.startswith("|")]
    table = [[x.strip() for x in line.strip("|").split(" |")] for line in lines]
    columns, _, *rows = table
    return {row[0]: dict(zip(columns, row)) for row in rows}
