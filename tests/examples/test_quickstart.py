"""The quickstart runs from one command and writes what it promises."""

import math
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTENTIONS = (
    "none (byte frequencies)",
    "full",
    "sliding window",
    "stochastic, window",
    "stochastic, block",
    "small world, one softmax",
    "MoBA, top 3 blocks",
    "small world, gated",
)


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """A few files of made-up code, with names that come back."""
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    words = ["window", "token", "permutation", "layer", "gate", "block"]
    for index in range(12):
        lines = [
            f"def {a}_{number}({b}):\n    return {b} + {number}\n"
            for a, b, number in zip(
                rng.choice(words, 60),
                rng.choice(words, 60),
                rng.integers(0, 100, 60),
            )
        ]
        (folder / f"file_{index}.py").write_text("\n".join(lines), "utf-8")
    return folder


def run_quickstart(text_folder, output, *options):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")]
        ),
    }
    command = [
        *(sys.executable, str(ROOT / "examples" / "quickstart.py")),
        *("--text", str(text_folder), "--output", str(output)),
        *("--minutes", "0.01", "--length", "32", "--visible-keys", "6"),
        *("--permutations", "2"),
        *options,
    ]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def output(text_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("output")
    done = run_quickstart(text_folder, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in range(1, 7):
        assert f"[{stage}/6" in done.stdout
    for path in folder.iterdir():
        assert str(path) in done.stdout
    return folder


def table_rows(folder):
    lines = (folder / "table.md").read_text("utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|") and not line.startswith("|---")
    ]
    return [row for row in rows if row[0] != "attention"]


def test_table_has_every_attention_with_finite_losses(output):
    rows = table_rows(output)
    assert {row[0] for row in rows} == set(ATTENTIONS)
    assert len(rows) == len(ATTENTIONS) + 1  # the sliding window, fine-tuned
    for row in rows:
        numbers = re.findall(r"[-+]?\d+\.\d+|nan|inf", " ".join(row[2:]))
        assert len(numbers) >= 2
        assert all(math.isfinite(float(number)) for number in numbers)


def test_visible_keys_are_near_the_budget(output):
    for row in table_rows(output)[2:]:
        assert abs(float(row[2]) - 6) < 1


def test_figure_and_samples_are_written(output):
    figure = output / "loss_against_visible_keys.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "full attention" in (output / "samples.txt").read_text("utf-8")


def test_unusable_text_is_explained(tmp_path):
    done = run_quickstart(tmp_path, tmp_path / "output")
    assert done.returncode != 0
    assert "At least two text files" in done.stderr


@pytest.mark.slow
def test_same_seed_gives_the_same_table(text_folder, output, tmp_path, backend):
    if backend != "jax":
        pytest.skip("Threads add in any order on torch and TensorFlow.")
    done = run_quickstart(text_folder, tmp_path)
    assert done.returncode == 0, done.stderr
    assert table_rows(tmp_path) == table_rows(output)


@pytest.mark.slow
def test_another_seed_gives_another_table(text_folder, output, tmp_path):
    done = run_quickstart(text_folder, tmp_path, "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert table_rows(tmp_path) != table_rows(output)
