"""What docs/evaluation.md says, runs."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "evaluation.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_snippets_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    *snippets, of_harness = SNIPPETS
    assert len(snippets) == 6
    for snippet in snippets:
        exec(compile(snippet, PAGE.name, "exec"), names)
    assert names["result"].num_prompts == 8
    assert (tmp_path / "results" / "comparison.json").is_file()
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    exec(compile(of_harness, PAGE.name, "exec"), names)
    assert names["lm"].max_length == 128
