"""Runs outlive their process, and count where their settings are the same."""

import dataclasses
import json
import pathlib

import pytest
from kept_runs import KeptRuns


@dataclasses.dataclass
class Run:
    name: str
    seed: int | None
    losses: list


SETTINGS = {"length": 8, "text": pathlib.Path("folder"), "range": (1, 2)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "runs.json"


def test_finds_what_was_added_in_another_process(path):
    kept = [Run("a", 0, [1.0]), Run("a", None, [2.0]), Run("b", 0, [3.0])]
    for run in kept:
        KeptRuns(path, Run, SETTINGS).add(run)
    runs = KeptRuns(path, Run, SETTINGS)
    assert runs.find(name="a", seed=None) == kept[1]
    assert runs.find(name="b") == kept[2]
    assert runs.find(name="b", seed=1) is None


def test_other_settings_have_their_own(path):
    first = Run("a", 0, [1.0])
    KeptRuns(path, Run, SETTINGS).add(first)
    others = KeptRuns(path, Run, {**SETTINGS, "length": 9})
    assert others.find(name="a") is None
    others.add(Run("a", 0, [2.0]))
    assert KeptRuns(path, Run, SETTINGS).find(name="a") == first


def test_an_interruption_costs_no_earlier_run(path, monkeypatch):
    runs = KeptRuns(path, Run, SETTINGS)
    runs.add(Run("a", 0, [1.0]))
    before = path.read_text()

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runs.add(Run("b", 0, [2.0]))
    assert path.read_text() == before
