"""The benchmark of attentions: its file, its checks, what it refuses."""

import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
from example_runs import run_to_the_end
from keras import ops

from examples.benchmarks import attention_measuring
from examples.benchmarks import attention_memory
from examples.benchmarks import attention_peers
from examples.benchmarks import attention_report
from examples.benchmarks import attention_table
from keras_sa import backend as kb
from keras_sa import ops as sa_ops

PROBLEM = attention_table.Problem(
    batch=1, length=128, heads=2, head_dim=8, window=16
)
TINY = (
    *("--lengths", 96, "--windows", 16, "--heads", 2),
    *("--head-dim", 8, "--rounds", 1),
)
ATTENTIONS = {x.name: x for x in attention_table.ATTENTIONS}
PEERS = {x.name: x for table in attention_peers.PEERS.values() for x in table}


def measure(*attentions):
    return attention_measuring.measure(attentions, PROBLEM, 1, kb.compile)


def test_writes_what_it_measured(tmp_path, backend):
    path = tmp_path / "figures.json"
    printed = run_to_the_end(
        "benchmarks/attention",
        *("--backend", backend, "--output", path, *TINY),
        *("--attentions", "full", "stochastic, block"),
        *("SlidingWindow", "keras."),
    )
    written = json.loads(path.read_text("utf-8"))
    assert written["backend"] == backend
    (record,) = written["problems"]
    assert (record["length"], record["window"]) == (96, 16)
    assert not record["no_figure"]
    figures = record["attentions"]
    assert len(figures) == 4
    for name, figure in figures.items():
        assert f"| {name} |" in printed
        assert set(figure["median_seconds"]) == {"forward", "both"}
        assert figure["bound_seconds"]["forward"] > 0
        assert figure["first_call_seconds"]["both"] > 0
    assert figures["full"]["visible_keys"] == pytest.approx(97 / 2)


def check(attention):
    attention_measuring.check(
        attention_measuring.Candidate(attention, PROBLEM, kb.compile)
    )


def wrong_window(problem, extra=1):
    return functools.partial(
        sa_ops.sliding_window_attention,
        window_size=problem.window + extra,
        is_causal=True,
    )


def test_wrong_values_get_no_figure():
    right = ATTENTIONS["sliding window"]
    wrong = dataclasses.replace(right, name="wrong", make=wrong_window)
    figures, refused = measure(right, wrong)
    assert set(figures) == {"sliding window"}
    assert refused["wrong"].startswith("wrong values")


def test_what_is_wrong_at_one_shape_only_gets_no_figure():
    def make(problem):
        extra = int(problem.length == PROBLEM.length)
        return wrong_window(problem, extra)

    wrong = dataclasses.replace(ATTENTIONS["sliding window"], make=make)
    assert not measure(wrong)[0]


def test_wrong_gradients_get_no_figure():
    def make(problem):
        attend = wrong_window(problem, extra=0)
        return lambda query, key, value: attend(
            query, ops.stop_gradient(key), value
        )

    wrong = dataclasses.replace(ATTENTIONS["sliding window"], make=make)
    figures, refused = measure(wrong)
    assert not figures
    assert refused["sliding window"].startswith("wrong gradients")


def test_what_cannot_run_says_why():
    peer = PEERS["Longformer (transformers)"]
    missing = dataclasses.replace(peer, package="not_to_be_found")
    assert "not_to_be_found is not installed" in measure(missing)[1][peer.name]
    odd = dataclasses.replace(PROBLEM, window=7)
    for name in ("Longformer", "BigBird"):
        assert PEERS[f"{name} (transformers)"].why_not(odd)
    (*_, unknown) = attention_table.named_implementations(["nobody"])
    assert "portable" in measure(unknown)[1][unknown.name]


@pytest.mark.parametrize("name", ["stochastic, window", "block-routed, top 3"])
def test_some_rows_of_a_long_text(name, monkeypatch):
    monkeypatch.setattr(attention_measuring, "ROWS", 24)
    right = ATTENTIONS[name]
    check(right)
    wrong = dataclasses.replace(right, mask=attention_table.causal_mask)
    with pytest.raises(attention_measuring.WrongResult):
        check(wrong)


@pytest.mark.parametrize(
    "peer",
    attention_peers.PEERS[keras.config.backend()],
    ids=lambda peer: peer.name,
)
def test_peers_see_what_they_say(peer):
    reason = attention_measuring.why_not(peer, PROBLEM)
    if reason is not None:
        pytest.skip(reason)
    if not peer.has_backward:
        pytest.skip("it would be compiled, which takes long")
    check(peer)


@pytest.mark.parametrize(
    "attention", attention_table.permuted_attentions(), ids=lambda x: x.name
)
def test_orders_see_what_they_say(attention):
    check(attention)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_computed_keys_are_no_fewer_than_seen(name):
    attention = ATTENTIONS[name]
    candidate = attention_measuring.Candidate(attention, PROBLEM, kb.compile)
    seen = attention_measuring.visible_keys(candidate, chunk=48)
    assert 1 < seen <= (PROBLEM.length + 1) / 2
    if attention.computed_keys:
        assert 1.5 * seen < attention.computed_keys(PROBLEM) <= PROBLEM.window


def test_counts_products():
    flops = attention_measuring.count_flops(
        ATTENTIONS["full"], PROBLEM, visible=10
    )
    assert flops["forward"] == 2 * (128 * 2 * 10) * (8 + 8)
    assert flops["both"] == 3.5 * flops["forward"]


@pytest.mark.parametrize(
    "readings, expected",
    [
        ((100, 101, 102, 110, 112, 150), {"forward": 2, "both": 40}),
        # The last reading is the lower one.
        ((100, 101, 102, 110, 112, 111.5), {"forward": 2, "both": 2}),
    ],
)
def test_memory_grows_from_its_peak(monkeypatch, readings, expected):
    readings = iter(readings)
    monkeypatch.setattr(
        attention_memory, "peak_megabytes", lambda: next(readings)
    )
    grown = attention_memory.grow(
        ATTENTIONS["sliding window"], PROBLEM, kb.compile
    )
    assert grown == expected


def test_ratios_side_by_side(capsys):
    def record(length, full, ours):
        def figure(seconds):
            return {
                "median_seconds": {"forward": seconds, "both": 3 * seconds},
                "bound_seconds": {"forward": 1.0, "both": 6.0},
            }

        attentions = {"full": figure(full), "ours": figure(ours)}
        return {"length": length, "window": 4, "attentions": attentions}

    attention_report.print_summary([record(16, 6.0, 2.0), record(32, 9.0, 4.0)])
    lines = capsys.readouterr().out.splitlines()
    assert "| attention | 16, 4 | 32, 4 |" in lines
    assert "| ours | 2.0 / 1.0 | 4.0 / 2.0 |" in lines  # of the bound
    assert "| ours | 3.0 / 3.0 | 2.2 / 2.2 |" in lines  # of full attention


def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    figure = {
        "median_seconds": {"forward": 1.0},
        "peak_megabytes": None,
    }
    records = [
        {"length": n, "window": w, "attentions": {"full": figure}}
        for n in (16, 32)
        for w in (4, 8)
    ]
    attention_report.write_plots(tmp_path, {"backend": "jax"}, records)
    paths = sorted(tmp_path.iterdir())
    assert [x.name for x in paths] == [
        "attention_jax_w4.png",
        "attention_jax_w8.png",
    ]
    assert all(x.read_bytes().startswith(b"\x89PNG") for x in paths)


@pytest.mark.slow
def test_memory_of_a_process_each(tmp_path, backend):
    path = tmp_path / "figures.json"
    run_to_the_end(
        "benchmarks/attention",
        *("--backend", backend, "--output", path, *TINY, "--memory"),
        *("--implementations", "portable", "nobody"),
    )
    (record,) = json.loads(path.read_text("utf-8"))["problems"]
    assert len(record["no_figure"]) == 3
    for figure in record["attentions"].values():
        assert np.isfinite(figure["peak_megabytes"]["both"])
