"""Runs outlive their process, and count where their settings are the same."""

import json
import pathlib

import pytest

from examples.shared.kept_runs import KeptRuns
from examples.shared.kept_runs import Run
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

SETTINGS = {"length": 8, "text": pathlib.Path("folder"), "range": (1, 2)}


def run_of(seed, losses, attention="a"):
    pattern = SlidingWindow(8) | Stochastic(8)
    return Run(attention, seed, pattern, 4.5, 1.0, {"losses": losses})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "runs.json"


def test_finds_what_was_added_in_another_process(path):
    kept = [run_of(0, [1.0]), run_of(None, [2.0]), run_of(0, [3.0], "b")]
    for run in kept:
        KeptRuns(path, SETTINGS).add(run)
    runs = KeptRuns(path, SETTINGS)
    assert runs.find(attention="a", seed=None) == kept[1]
    assert runs.find(attention="b") == kept[2]
    assert runs.find(attention="b", seed=1) is None


def test_other_settings_have_their_own(path):
    first = run_of(0, [1.0])
    KeptRuns(path, SETTINGS).add(first)
    others = KeptRuns(path, {**SETTINGS, "length": 9})
    assert others.find(attention="a") is None
    others.add(run_of(0, [2.0]))
    assert KeptRuns(path, SETTINGS).find(attention="a") == first


def test_an_interruption_costs_no_earlier_run(path, monkeypatch):
    runs = KeptRuns(path, SETTINGS)
    runs.add(run_of(0, [1.0]))
    before = path.read_text()

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runs.add(run_of(0, [2.0], "b"))
    assert path.read_text() == before
