"""Pre-training runs from one command, and again after it was killed."""

import json
import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from example_runs import EXAMPLES
from example_runs import ROOT
from example_runs import run_example
from example_runs import run_to_the_end
from test_pretrain_training import read_log

from examples.pretrain.batches import held_out_examples
from examples.pretrain.documents import Files
from examples.pretrain.tokenizing import Bytes
from examples.shared import byte_text
from examples.shared.language_model import LanguageModel
from keras_sa import hub
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

NAME = "pretrain/run"


DATA_PARALLEL = ("--data-parallel",) * (keras.config.backend() == "jax")


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    if DATA_PARALLEL:
        flag = "--xla_force_host_platform_device_count=2"
        monkeypatch.setenv("XLA_FLAGS", flag)


def options_of(text_folder, output):
    return (
        *DATA_PARALLEL,
        *("--text", text_folder, "--output", output, "--tensorboard"),
        *("--pattern", "Stochastic(6) + SlidingWindow(6)"),
        *(
            "--layers",
            "2",
            "--length",
            "32",
            "--batch-size",
            "2",
            "--steps",
            "40",
        ),
        *("--log-every", "2", "--checkpoint-every", "10"),
        *("--evaluate-every", "20", "--held-out-sequences", "4"),
    )


# One test: its runs take longest.
def test_trains_and_goes_on_after_a_kill(text_folder, tmp_path, backend):
    folder = tmp_path / "run"
    printed = run_to_the_end(NAME, *options_of(text_folder, folder))
    check_run(folder, printed)
    check_loss(hub.from_preset(folder / "preset"), text_folder, folder)
    if backend == "jax":  # on the others, threads add in any order
        check_kill(text_folder, folder, tmp_path / "killed")


def check_run(folder, printed):
    log = read_log(folder / "log.csv")
    assert [int(row["step"]) for row in log] == list(range(2, 41, 2))
    assert 0 < float(log[-1]["gate_1"]) < 1
    summary = summary_of(folder)
    assert summary["held_out_loss"] == float(log[-1]["held_out_loss"])
    assert f"{summary['held_out_loss']:.4f}" in printed
    quarters = summary["held_out_loss_by_quarter_of_context"]
    assert np.mean(quarters) == pytest.approx(
        summary["held_out_loss"], rel=1e-5
    )
    gates = np.array(summary["gates_by_layer"])  # [layers, terms]
    logged = [float(log[-1][f"gate_{term}"]) for term in (1, 2)]
    np.testing.assert_allclose(gates.mean(axis=0), logged, rtol=1e-5)
    assert summary["command"] in (folder / "README.md").read_text()
    assert list((folder / "tensorboard").iterdir())


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def check_loss(causal_lm, text_folder, folder):
    """The preset has the attention and the held-out loss of the run."""
    pattern = hub.current_swap(causal_lm).patterns[0]
    assert pattern == Stochastic(6) + SlidingWindow(6)
    _, paths = byte_text.split_files(text_folder)
    examples = held_out_examples(Files(paths, text_folder), Bytes(), 32, 4, 2)
    model = LanguageModel(causal_lm)
    model.compile(seed=0)
    expected = summary_of(folder)["held_out_loss"]
    assert model.loss(examples, 2) == pytest.approx(expected, rel=1e-5)


def check_kill(text_folder, whole, killed):
    """A run that is killed ends like one that is not."""
    options = options_of(text_folder, killed)
    kill_after_a_checkpoint(killed, *options)
    assert not (killed / "summary.json").exists()
    printed = run_to_the_end(NAME, *options)
    assert "Training from step 0" not in printed
    assert read_log(killed / "log.csv") == read_log(whole / "log.csv")
    expected = last_checkpoint(whole)
    received = last_checkpoint(killed)
    assert received.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(received[name], array, err_msg=name)


def kill_after_a_checkpoint(folder, *options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{NAME}.py"), *map(str, options)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    while not list((folder / "checkpoints").glob("step_*.npz")):
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def last_checkpoint(folder):
    path = max((folder / "checkpoints").glob("step_*.npz"))
    with np.load(path) as file:
        return {k: file[k] for k in file if k != "record"}


def test_dry_run(tmp_path):
    printed = run_to_the_end(
        NAME,
        *("--size", "paper-360m", "--pattern", "Full()"),
        "Stochastic(256) + SlidingWindow(256)",
        *("--dry-run", "--output", tmp_path / "nothing"),
    )
    assert "parameters: 361" in printed
    assert "memory of one device" in printed
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (("--steps", "0"), "--steps is expected to be at least 1"),
        (("--log-every", "3", "--evaluate-every", "4"), "a multiple"),
        (("--text", "a", "--dataset", "b"), "Either --text or --dataset"),
    ],
)
def test_wrong_arguments_are_explained(options, message):
    done = run_example(NAME, *options)
    assert done.returncode == 2
    assert message in done.stderr
