"""What the pages of docs/ on the analysis say, runs: over shorter texts."""

import pathlib
import re

import keras
import pytest

pytest.importorskip("keras_hub", reason="keras_hub is not installed")
pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch",
    reason="what it calls is tested on all backends; JAX compiles it for long",
)
DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture
def causal_lm():
    import keras_hub

    return keras_hub.models.Qwen3Backbone(
        vocabulary_size=32,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        hidden_dim=32,
        intermediate_dim=64,
    )


def run_page(name, **names):
    text = (DOCS / name).read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for snippet in snippets:
        short = re.sub(r"\b(4096|8192|1024)\b", "128", snippet)
        exec(compile(short, name, "exec"), names)
    return names


def test_analysis(causal_lm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_page("analysis.md", causal_lm=causal_lm)
    assert names["field"].coverage_depth() == 1  # of windows of 256
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"pattern.png", "coverage.png"}


def test_mixing():
    names = run_page("mixing.md")
    assert names["found"].mean.shape == (8,)


def test_attention_in_models(causal_lm, tmp_path, monkeypatch):
    from keras_sa import hub
    from keras_sa.patterns import SlidingWindow
    from keras_sa.patterns import Stochastic

    monkeypatch.chdir(tmp_path)
    hub.swap_attention(causal_lm, Stochastic(8) + SlidingWindow(8))
    inputs = {
        "token_ids": keras.ops.arange(20)[None] % 32,
        "padding_mask": keras.ops.ones((1, 20), "int32"),
    }
    names = run_page(
        "attention_in_models.md", causal_lm=causal_lm, inputs=inputs
    )
    assert len(names["profiles"]) == len(names["gates"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "profile.png",
        "gates.png",
    }
