"""Patterns of one model side by side: losses, keys, time, memory."""

import contextlib
import dataclasses
import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import hub
from keras_sa.evaluation import PatternComparison
from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import compare_patterns
from keras_sa.evaluation import comparison as comparing
from keras_sa.evaluation import cost
from keras_sa.evaluation.measuring import PARTS
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

stats = pytest.importorskip("scipy.stats")

LENGTH, LAST, SEED = 24, 6, 3
PATTERNS = {
    "window": SlidingWindow(4),
    "one layer": {1: Stochastic(6) | GlobalKeys(first=2)},
    "question": SlidingWindow(4) | GlobalQueries(last=LAST),
}
RANDOM = np.random.default_rng(0)
# Longer than is read, by different amounts.
DOCUMENTS = [
    RANDOM.integers(1, models.VOCABULARY_SIZE, LENGTH + 1 + more).tolist()
    for more in (0, 3, 9)
]


def compare(model, patterns=PATTERNS, **options):
    options = {"length": LENGTH, "last_tokens": LAST, "rounds": 1, **options}
    options = {"seed": SEED, "verbose": False, **options}
    return compare_patterns(
        model, patterns, options.pop("documents", DOCUMENTS), **options
    )


@pytest.fixture(scope="module")
def model():
    return models.build("qwen3")


@pytest.fixture(scope="module")
def comparison(model):
    return compare(model)


def losses_of(model, pattern):
    """`[N, n]`, with the model and its scorer alone."""
    scorer = TokenScorer(model, batch_size=1, max_length=LENGTH)
    with hub.swap_attention(model, pattern, seed=SEED):
        scores = scorer.score_sequences([x[: LENGTH + 1] for x in DOCUMENTS])
    return -np.array([x.log_probabilities for x in scores])


@pytest.mark.parametrize("name", ["full", *PATTERNS])
def test_losses_of_each_part(name, model, comparison):
    losses = losses_of(model, PATTERNS.get(name, Full()))
    full = losses_of(model, Full())
    for part, first in {
        "all": 0,
        "second half": LENGTH // 2,
        "last": LENGTH - LAST,
    }.items():
        expected = losses[:, first:].mean(axis=1)
        np.testing.assert_allclose(
            comparison[name].losses[part], expected, rtol=1e-5
        )
        estimate = comparison.loss(name, part)
        assert estimate.mean == pytest.approx(expected.mean(), rel=1e-5)
        increase = comparison.increase(name, part)
        difference = expected - full[:, first:].mean(axis=1)
        assert increase.mean == pytest.approx(difference.mean(), abs=1e-5)
    if name != "full":
        assert abs(comparison.increase(name).mean) > 1e-3


def test_the_interval_is_that_of_paired_differences(comparison):
    of_pattern, of_full = (
        comparison[name].losses["all"] for name in ("window", "full")
    )
    test = stats.ttest_rel(of_pattern, of_full).confidence_interval(0.95)
    received = comparison.increase("window")
    np.testing.assert_allclose(
        [received.low, received.high], [test.low, test.high], rtol=1e-9
    )


def test_the_interval_of_one_document_is_unknown(model):
    received = compare(model, [SlidingWindow(3)], documents=DOCUMENTS[:1])
    increase = received.increase("SlidingWindow(3)")
    assert np.isfinite(increase.mean) and np.isnan(increase.low)
    assert "±" not in str(received)


def test_the_question_costs_the_last_tokens_nothing_in_the_first_layer(model):
    """Only in layers of full attention do all tokens matter to the last."""
    received = compare(model, {"question": {1: PATTERNS["question"]}})
    assert abs(received.increase("question", "last").mean) < 1e-5
    assert abs(received.increase("question", "second half").mean) > 1e-4


def test_visible_keys_and_layers(comparison):
    full = (LENGTH + 1) / 2
    window = np.minimum(np.arange(LENGTH) + 1, 4).mean()
    assert comparison["full"].visible_keys == full
    assert comparison["window"].visible_keys == window
    one = PATTERNS["one layer"][1].keys_per_token(LENGTH, is_causal=True)
    assert comparison["one layer"].visible_keys == (full + one) / 2
    layers = [x.layers for x in (comparison.full, *comparison.results)]
    assert layers == [0, 2, 1, 2]


def test_time_and_memory(comparison):
    for result in (comparison.full, *comparison.results):
        assert result.seconds > 0 and result.full_seconds > 0
        assert result.speedup == result.full_seconds / result.seconds


def test_losses_alone(model, comparison, capsys):
    received = compare(model, rounds=0, verbose=True)
    for result, timed in zip(received.results, comparison.results):
        np.testing.assert_allclose(
            result.losses["all"], timed.losses["all"], rtol=1e-5
        )
        assert result.seconds is result.speedup is result.memory is None
    columns, _, *rows = str(received).splitlines()
    assert "prefill" not in columns + capsys.readouterr().out
    assert {row.count(" | ") for row in (columns, *rows)} == {6}


def test_the_model_is_as_it_was(model, comparison):
    assert hub.current_swap(model) is None
    paths = [v.path for v in model.variables]
    assert paths == [v.path for v in models.build("qwen3").variables]


def test_it_survives_as_json(comparison, tmp_path):
    path = tmp_path / "folder" / "comparison.json"
    comparison.save(path)
    assert PatternComparison.load(path) == comparison
    assert [p.name for p in path.parent.iterdir()] == ["comparison.json"]
    patterns = json.loads(path.read_text())["results"][1]["swap"]["pattern"]
    revived = keras.saving.deserialize_keras_object(patterns["1"])
    assert revived == PATTERNS["one layer"][1]


def test_the_table(comparison):
    lines = str(comparison).splitlines()
    assert len(lines) == 2 + 1 + len(PATTERNS)
    assert lines[0].split(" | ")[6] == "last 6"
    cells = lines[3].strip("| ").split(" | ")
    assert cells[:2] == ["window", f"{comparison['window'].visible_keys:.1f}"]
    increase = comparison.increase("window")
    expected = f"{increase.mean:+.3f} ± {increase.high - increase.mean:.3f}"
    assert cells[4] == expected
    names = str(compare_names("a | b")).splitlines()[3]
    assert r"a \| b" in names


def compare_names(name):
    """A comparison of one pattern with this name, made up."""
    losses = {part: [1.0, 2.0] for part in PARTS}
    result = comparing.PatternResult(
        name=name,
        swap={},
        layers=1,
        visible_keys=2.0,
        losses=losses,
        seconds=1.0,
        full_seconds=3.0,
        bytes=None,
        full_bytes=None,
    )
    full = dataclasses.replace(result, name="full")
    return PatternComparison({"last_tokens": 3, "rounds": 1}, full, (result,))


def test_the_plot(comparison, tmp_path):
    pytest.importorskip("matplotlib")
    comparison.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_it_says_what_is_done(model, capsys):
    compare(model, [SlidingWindow(3)], verbose=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2 ") and "] full: loss" in first
    assert second.startswith("[2/2 ") and "SlidingWindow(3)" in second


@pytest.fixture
def measured(monkeypatch):
    """Names of what is measured."""
    names = []
    measure = comparing._Measure.__call__

    def spy(self, name, plan):
        if names[-1:] == ["stop"]:
            raise KeyboardInterrupt
        names.append(name)
        return measure(self, name, plan)

    monkeypatch.setattr(comparing._Measure, "__call__", spy)
    return names


def test_it_goes_on_after_an_interruption(model, measured, tmp_path):
    models.skip_where_compiled("interruptions")
    path = tmp_path / "comparison.json"
    with pytest.raises(KeyboardInterrupt):
        compare(
            model,
            {**PATTERNS, "stop": SlidingWindow(2), "never": SlidingWindow(3)},
            path=path,
        )
    assert measured == ["full", *PATTERNS, "stop"]
    measured.clear()
    again = compare(model, {**PATTERNS, "more": SlidingWindow(5)}, path=path)
    assert measured == ["more"]
    assert [x.name for x in again.results] == [*PATTERNS, "more"]
    # What was not asked for is kept all the same.
    names = [x.name for x in PatternComparison.load(path).results]
    assert names == [*PATTERNS, "stop", "more"]
    measured.clear()
    other = compare(model, {"window": SlidingWindow(9)}, path=path)
    assert measured == ["window"]
    assert other["window"].visible_keys > again["window"].visible_keys


def test_a_file_of_another_comparison(model, tmp_path):
    models.skip_where_compiled("other files")
    path = tmp_path / "comparison.json"
    compare(model, [SlidingWindow(3)], path=path)
    with pytest.raises(ValueError, match="(?s)`path`.*length: 24.*20 here"):
        compare(model, [SlidingWindow(3)], path=path, length=20)
    other = models.build("qwen3")
    models.draw_weights(other, seed=5)
    with pytest.raises(ValueError, match="(?s)same weights.*Received"):
        compare(other, [SlidingWindow(3)], path=path)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"documents": [[1] * 9, [1] * 30]}, "at least 25 tokens.*0 of 9"),
        ({"documents": []}, "0 documents"),
        ({"documents": ["a text of some words"]}, "tokenizer"),
        ({"patterns": [Stochastic(3) + SlidingWindow(3)]}, "no training"),
        ({"patterns": "stochastic"}, r"Stochastic\(window_size\)"),
        ({"patterns": {"full": SlidingWindow(3)}}, "'full'"),
        ({"patterns": {"a": {9: SlidingWindow(3)}}}, "Received"),
        ({"last_tokens": 25}, "at most `length`"),
        ({"rounds": -1}, "rounds"),
        ({"seed": None}, "seed"),
        ({"length": 2.5}, "length"),
    ],
    ids=str,
)
def test_bad_input(model, changes, words, measured):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        compare(model, changes.pop("patterns", PATTERNS), **changes)
    assert not measured and hub.current_swap(model) is None


def test_a_model_under_a_swap(model, measured):
    with hub.swap_attention(model, SlidingWindow(3)):
        with pytest.raises(ValueError, match="restore.*Received: Attention"):
            compare(model)
    assert not measured


def test_documents_of_bytes():
    model = models.build("qwen3", vocabulary_size=256, num_layers=1)
    texts = ["a text of some words", "another text of words"]
    options = {"length": 16, "tokenizer": "bytes"}
    received, expected = (
        compare(model, [SlidingWindow(3)], documents=documents, **options)
        for documents in (texts, [list(text.encode()) for text in texts])
    )
    assert received.full.losses == expected.full.losses


def test_calls_are_timed_in_turn():
    seen = []

    def candidate(name):
        @contextlib.contextmanager
        def context():
            seen.append(f"enter {name}")
            yield

        return lambda: seen.append(name) or ops.ones(()), context

    cost.seconds_side_by_side([candidate("a"), candidate("b")], rounds=2)
    assert seen == ["enter a", "a", "enter b", "b"] * 3


def test_the_peak_is_the_same_again():
    """What an allocator keeps of the first call is not left out."""

    def call():
        x = ops.ones((2000, 200))
        parts = [x * i for i in range(40)]  # too small for pages of their own
        return sum(parts)

    first, again = (cost.peak_bytes(call, ops.ones(())) for _ in range(2))
    if first is None:
        pytest.skip("nobody counts here")
    assert min(first, again) > 40 * 2000 * 200 * 4 * 0.8


def test_the_peak_is_what_a_call_takes():
    few, many = (
        cost.peak_bytes(lambda n=n: ops.ones((n, 1024)), ops.ones(()))
        for n in (1, 40_000)
    )
    if few is None:
        pytest.skip("nobody counts here")
    megabytes = 40_000 * 1024 * 4 / 2**20
    assert megabytes * 0.9 < (many - few) / 2**20 < megabytes * 3


def test_the_peak_on_a_gpu_of_torch(monkeypatch, backend):
    if backend != "torch":
        pytest.skip("torch's own counters")
    import torch

    from keras_sa.backend import torch as ours

    calls = []
    reset = lambda device: calls.append("reset")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)
    tensor = type("Tensor", (), {"device": torch.device("cuda", 0)})()
    received = ours.peak_bytes_of_device(lambda: calls.append("call"), tensor)
    assert received == 70 and calls == ["reset", "call"]
