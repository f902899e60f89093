"""Pre-training runs from one command, and again after it was killed."""

import json
import os
import signal
import subprocess
import sys
import time

import keras_hub
import numpy as np
import pytest
from example_runs import EXAMPLES
from example_runs import ROOT
from example_runs import run_example
from example_runs import run_to_the_end
from test_pretrain_training import read_log

from keras_sa import hub

NAME = "pretrain"
SMALL_WORLD = ("--attention", "small_world", "--window", "6")


def options_of(text_folder, output, *options, steps=4):
    return (
        *("--text", text_folder, "--output", output),
        *("--length", "32", "--batch-size", "2", "--steps", steps),
        *("--log-every", "1", "--checkpoint-every", "2"),
        *("--evaluate-every", "2", "--held-out-sequences", "4"),
        *options,
    )


# One test: its run takes longest.
def test_trains_and_keeps_a_preset(text_folder, tmp_path):
    options = options_of(text_folder, tmp_path, *SMALL_WORLD, "--tensorboard")
    printed = run_to_the_end(NAME, *options)
    log = read_log(tmp_path / "log.csv")
    assert [row["step"] for row in log] == ["1", "2", "3", "4"]
    assert 0 < float(log[-1]["stochastic_gate"]) < 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert f"{summary['held_out_loss']:.4f}" in printed
    assert summary["held_out_loss"] == float(log[-1]["held_out_loss"])
    assert summary["command"] in (tmp_path / "README.md").read_text()
    assert list((tmp_path / "tensorboard").iterdir())
    loaded = hub.from_preset(tmp_path / "preset")
    assert hub.current_swap(loaded).pattern.window_size == 6
    check_loss(loaded, text_folder, summary)


def check_loss(causal_lm, text_folder, summary):
    """The preset has the held-out loss of the run."""
    import byte_text
    import pretrain_batches
    from language_model import LanguageModel
    from pretrain_documents import Files
    from pretrain_tokenizer import Bytes

    _, paths = byte_text.split_files(text_folder)
    examples = pretrain_batches.held_out_examples(
        Files(paths, text_folder), Bytes(), 32, 4, 2
    )
    model = LanguageModel(causal_lm)
    model.compile(seed=0)
    loss = model.loss(examples, batch_size=2)
    assert loss == pytest.approx(summary["held_out_loss"], rel=1e-5)


def test_byte_pairs_from_a_dataset(text_folder, tmp_path, backend, monkeypatch):
    if backend != "jax":
        pytest.skip("Data and tokenizers know no backend.")
    rows = [
        json.dumps({"content": path.read_text()})
        for path in sorted(text_folder.iterdir())
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(rows))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    output = tmp_path / "run"
    _, _, *options = options_of(text_folder, output, steps=1)
    dataset = (
        *("--dataset", "json", "--data-files", file),
        *("--text-column", "content", "--tokenizer", "bpe"),
        *("--vocabulary-size", "300", "--accumulation", "2"),
    )
    run_to_the_end(NAME, *options, *dataset)
    model = keras_hub.models.CausalLM.from_preset(str(output / "preset"))
    tokenizer = model.preprocessor.tokenizer
    assert tokenizer.vocabulary_size() == model.backbone.vocabulary_size
    text = "def window_1(token):"
    tokens = tokenizer.tokenize(text)
    assert len(tokens) < len(text)
    assert tokenizer.detokenize(tokens) == text


def start(*options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{NAME}.py"), *map(str, options)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def kill_after_a_checkpoint(folder, *options):
    process = start(*options)
    while not list((folder / "checkpoints").glob("step_*.npz")):
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def last_checkpoint(folder):
    path = max((folder / "checkpoints").glob("step_*.npz"))
    with np.load(path) as file:
        return {k: file[k] for k in file if k != "record"}


def test_a_killed_run_ends_like_another(text_folder, tmp_path, backend):
    if backend != "jax":
        pytest.skip("Threads add in any order on torch and TensorFlow.")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steps = 60  # so many that it cannot end before it is killed
    options = ("--checkpoint-every", "2", "--evaluate-every", "20")
    options = (*SMALL_WORLD, *options)
    run_to_the_end(NAME, *options_of(text_folder, whole, *options, steps=steps))
    options = options_of(text_folder, killed, *options, steps=steps)
    kill_after_a_checkpoint(killed, *options)
    assert not (killed / "summary.json").exists()

    refused = run_example(NAME, *options, "--seed", "3", "--top-k", "2")
    assert refused.returncode != 0

    printed = run_to_the_end(NAME, *options)
    assert "Training from step 0" not in printed
    assert read_log(killed / "log.csv") == read_log(whole / "log.csv")
    expected = last_checkpoint(whole)
    received = last_checkpoint(killed)
    assert received.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(received[name], array, err_msg=name)


def test_dry_run(tmp_path):
    printed = run_to_the_end(
        NAME,
        *("--size", "paper-360m", "--attention", "small_world", "full"),
        *("--dry-run", "--output", tmp_path / "nothing"),
    )
    assert "parameters: 361" in printed
    assert "memory of one device" in printed
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (("--window", "4"), "--window expects --attention sliding_window"),
        (
            (*SMALL_WORLD, "--merge", "softmax", "--gate-bias", "0", "0"),
            "--gate-bias expects --attention small_world --merge gate",
        ),
        (("--steps", "0"), "--steps is expected to be at least 1"),
        (("--log-every", "3", "--evaluate-every", "4"), "a multiple"),
        (("--attention", "none"), "invalid choice"),
        (("--text", "a", "--dataset", "b"), "Either --text or --dataset"),
    ],
)
def test_wrong_arguments_are_explained(options, message):
    done = run_example(NAME, *options)
    assert done.returncode == 2
    assert message in done.stderr
