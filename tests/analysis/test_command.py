"""The command line, `python -m keras_sa.analysis`."""

import io
import runpy
import sys

import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa.ops import patterns

pytest.importorskip("matplotlib")
from keras_sa.analysis import __main__ as command  # noqa: E402
from keras_sa.analysis.command import pattern_report  # noqa: E402
from keras_sa.analysis.command import stacks  # noqa: E402
from keras_sa.analysis.command.arguments import parse  # noqa: E402
from keras_sa.analysis.command.progress import Progress  # noqa: E402

LENGTH = 60  # of all, so that compiled backends compile little


def run(words, capsys, tmp_path):
    """The rows of the table by their name, the notes, and stderr."""
    command.main([*words.split(), "--output", str(tmp_path / "new")])
    output = capsys.readouterr()
    assert (tmp_path / "new/table.md").read_text() == output.out
    lines = output.out.splitlines()
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    columns, _, *rows = table
    rows = {row[0]: dict(zip(columns, row)) for row in rows}
    return rows, output.out, output.err


def files_of(tmp_path):
    return sorted(path.name for path in (tmp_path / "new").iterdir())


def test_a_pattern(capsys, tmp_path):
    words = "--pattern small_world --length 60 --window 5 --layers 3"
    rows, text, messages = run(
        f"{words} --local-window 4 --causal --seed 3", capsys, tmp_path
    )
    assert list(rows) == ["small_world"]
    row = rows["small_world"]
    # Every layer has the seed of its place, as in a swapped model.
    arguments = parse([*words.split(), "--causal", "--local-window=4"])
    arguments.seed = 3
    stack = stacks.make_stack("small_world", arguments, LENGTH)
    assert len({pattern.seed for pattern in stack}) == 3
    assert stack[0] == patterns.SmallWorld(
        5, seed=stack[0].seed, local_window_size=4, causal=True
    )
    field = analysis.receptive_field(stack, LENGTH)
    for depth in (1, 2, 3):
        found = float(row[f"depth {depth}"])
        assert found == pytest.approx(100 * field.coverage[depth], rel=1e-3)
    mask = ops.convert_to_numpy(stack[0].mask(LENGTH))
    keys = float(row["visible keys per token"])
    assert keys == pytest.approx(mask.sum() / LENGTH, rel=1e-3)
    measures = analysis.small_world_measures(stack[:1], LENGTH, seed=3)
    for column, value in (
        ("degree", measures.degree),
        ("clustering", measures.clustering),
        ("path length", measures.path_length),
        ("diameter", measures.diameter),
        ("sigma", measures.sigma),
    ):
        assert float(row[column]) == pytest.approx(value, rel=1e-3)
    assert "n = 60 tokens, window 5" in text
    assert "equally many keys" not in text
    assert files_of(tmp_path) == ["coverage.png", "pattern.png", "table.md"]
    assert "wrote " in messages and "table.md" in messages


def test_all_patterns(capsys, tmp_path):
    rows, text, _ = run(
        "--pattern full sliding_window stochastic small_world block_routed "
        "--length 60 --window 5 --block-size 4 --top-k 2 --layers 10 "
        "--heads 2 --neighborhood block --format svg --graph-layers 2",
        capsys,
        tmp_path,
    )
    assert list(rows) == list(stacks.PATTERNS)
    full = rows["full"]
    assert full["visible keys per token"] == "60"
    assert full["depth 1"] == full["depth 10"] == "100"
    assert full["100 % at depth"] == full["diameter"] == "1"
    window = rows["sliding_window"]
    assert window["99 % at depth"] == "> 10"
    assert window["degree"] == "3.9"  # 4, but for the ends
    depths = [x for x in full if x.startswith("depth")]
    assert depths == [f"depth {d}" for d in (1, 2, 4, 8, 10)]
    # Heads that choose or draw for themselves see more together.
    assert float(rows["stochastic"]["visible keys per token"]) > 6
    assert float(rows["block_routed"]["visible keys per token"]) > 8
    assert "block_routed: the blocks are a random choice" in text
    assert "do not see equally many keys" in text
    assert "of the undirected graph of 2 layers together" in text
    assert files_of(tmp_path) == ["coverage.svg", "pattern.svg", "table.md"]


def test_measures_that_are_asked_for(capsys, tmp_path):
    rows, text, _ = run(
        "--pattern stochastic --length 60 --window 5 --layers 2 "
        "--measures mixing small_world_curve",
        capsys,
        tmp_path,
    )
    row = rows["stochastic"]
    assert list(row) == [
        "pattern",
        "visible keys per token",
        "total variation",
        "gap of a layer",
        "gap of the stack",
    ]
    arguments = parse(
        "--pattern stochastic --length 60 --window 5 --layers 2".split()
    )
    stack = stacks.make_stack("stochastic", arguments, LENGTH)
    for column, value in (
        ("total variation", analysis.total_variation(stack, LENGTH).mean[-1]),
        ("gap of the stack", analysis.spectral_gap(stack, LENGTH).product_gap),
    ):
        assert float(row[column]) == pytest.approx(value, rel=1e-3)
    assert "small_world_curve.png" in files_of(tmp_path)


def test_samples(capsys, tmp_path):
    rows, text, _ = run(
        "--pattern sliding_window --length 60 --window 5 --layers 3 "
        "--samples 9",
        capsys,
        tmp_path,
    )
    assert "From a random sample of 9 tokens" in text
    assert "±" in rows["sliding_window"]["depth 1"]
    assert "±" in rows["sliding_window"]["path length"]


def test_the_same_order_reaches_no_further(capsys, tmp_path):
    words = "--pattern stochastic --length 60 --window 5 --layers 3 "
    words += "--measures receptive_field "
    same, _, _ = run(f"{words} --same-order", capsys, tmp_path)
    other, _, _ = run(words, capsys, tmp_path)
    same, other = same["stochastic"], other["stochastic"]
    # A window of 5 slots becomes one of 13, or about 5**3 tokens.
    assert float(same["depth 1"]) == float(other["depth 1"])
    assert float(same["depth 3"]) < 100 * 13 / LENGTH
    assert float(other["depth 3"]) > 3 * 100 * 13 / LENGTH


def test_full_attention_builds_no_large_graph(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pattern_report, "_MOST_FULL", LENGTH - 1)
    words = "--pattern full --length 60 --layers 1"
    rows, text, _ = run(words, capsys, tmp_path)
    assert "degree" not in rows["full"] and rows["full"]["depth 1"] == "100"
    assert "full: no small_world, for there would be up to 3,600 edges" in text


def test_what_is_too_large_for_memory_is_left_out(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(pattern_report, "_MOST_EDGES", 300)
    words = "--pattern sliding_window stochastic --length 60 --window 5"
    words += " --measures small_world --layers 2"
    rows, text, _ = run(words, capsys, tmp_path)
    assert rows["stochastic"]["degree"]
    rows, text, _ = run(f"{words} --graph-layers 2", capsys, tmp_path)
    assert "degree" not in rows["stochastic"]
    assert "stochastic: no small_world" in text


def test_nobody_sees_another(capsys, tmp_path):
    words = "--pattern sliding_window --length 60 --window 1 --layers 1"
    rows, text, _ = run(words, capsys, tmp_path)
    assert rows["sliding_window"]["depth 1"] == "1.667"
    assert "no small_world, for no token sees another" in text


def test_the_fly(capsys, tmp_path):
    rows, text, _ = run("--preset fly --length 60", capsys, tmp_path)
    assert list(rows) == [
        "sliding_window",
        "stochastic",
        "small_world",
        "fly, published",
    ]
    stack = analysis.stacks_of_degree(26)["stochastic"]
    measures = analysis.small_world_measures(stack, LENGTH)
    row = rows["stochastic"]
    assert float(row["sigma"]) == pytest.approx(measures.sigma, rel=1e-3)
    assert rows["fly, published"]["path length"] == "4.4"
    assert rows["fly, published"]["sigma"] == "141"
    assert rows["fly, published"]["clustering"] == ""
    assert "The fly has more neurons" in text
    assert files_of(tmp_path) == ["pattern.png", "table.md"]


def test_an_edge_list(capsys, tmp_path):
    """A ring of 60 nodes and its next but one, some of them weak."""
    path = tmp_path / "edges.csv"
    lines = ["weight,to,from"]
    for node in range(60):
        lines += [f"5,{(node + 1) % 60},{node}", f"1,{(node + 2) % 60},{node}"]
    path.write_text("\n".join(lines) + "\n")
    columns = "--source-column from --target-column to --weight-column weight"
    rows, text, _ = run(f"--edge-list {path} {columns}", capsys, tmp_path)
    row = rows["edges.csv"]
    assert (row["nodes"], row["degree"]) == ("60", "4")
    assert (row["clustering"], row["diameter"]) == ("0.5", "15")
    assert list(rows)[1:] == ["sliding_window", "stochastic", "small_world"]
    assert rows["sliding_window"]["nodes"] == "60"
    rows, _, _ = run(
        f"--edge-list {path} {columns} --min-weight 2", capsys, tmp_path
    )
    assert rows["edges.csv"]["degree"] == "2"
    assert rows["edges.csv"]["diameter"] == "30"


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "no-file.csv"),
        ("from,to\n1,1\n", "no edges between nodes"),
        ("from,to\n1,2\n", "Received: 'source'"),
    ],
)
def test_edge_lists_without_a_graph(content, words, tmp_path):
    path = tmp_path / "no-file.csv"
    column = []
    if content is not None:
        path.write_text(content)
    if "Received" in words:
        column = ["--source-column", "source"]
    with pytest.raises(SystemExit, match=words):
        command.main(["--edge-list", str(path), *column])


WINDOW = "--pattern stochastic --length 30 --window 4"


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "one of --pattern, --preset and --edge-list is expected"),
        ("--preset fly --pattern full", "--pattern and --preset"),
        ("--pattern ring --length 9", "invalid choice: 'ring'"),
        ("--pattern full full --length 9", "every pattern is expected once"),
        ("--pattern full", "--length is expected with --pattern"),
        ("--pattern stochastic --length 9", "--window is expected"),
        ("--pattern full --length 9 --window 3", "--window is expected with"),
        ("--pattern block_routed --length 9 --top-k 2", "--block-size is exp"),
        (f"{WINDOW} --local-window 3", "--local-window is expected with small"),
        (f"{WINDOW} --top-k 3", "--top-k is expected with block_routed"),
        (f"{WINDOW} --samples 31", "--samples is expected to be at most"),
        (f"{WINDOW} --layers 2 --graph-layers 3", "at most --layers 2"),
        (
            f"{WINDOW} --graph-layers 1 --measures mixing",
            "--graph-layers is expected with the measure small_world",
        ),
        (
            "--pattern full --length 9 --measures small_world_curve",
            "small_world_curve is expected with a --window",
        ),
        (
            "--pattern stochastic --length 9 --window 3 "
            "--measures small_world_curve",
            "with a --window of at least 4",
        ),
        (f"{WINDOW} --seed -1", "from 0 to 2**32 - 1"),
        (f"{WINDOW} --layers 0", "a positive integer is expected"),
        (f"{WINDOW} --min-weight 0", "--min-weight is not expected with"),
        ("--preset fly --length 26", "--length is expected to be above 26"),
        ("--preset fly --causal", "--causal is not expected with --preset"),
        ("--edge-list x.csv --length 9", "--length is not expected with"),
    ],
)
def test_wrong_arguments(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        parse(words.split())
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("causal", [False, True])
def test_random_blocks_are_different_and_alike_in_number(causal):
    blocks = stacks.random_blocks(40, 4, 3, 500, causal, seed=0)
    assert blocks.shape == (40, 500, 3)
    for token in (0, 5, 8, 22, 39):
        own = token // 4
        chosen = np.sort(blocks[token], axis=1)
        pairs = chosen[:, 1:] == chosen[:, :-1]
        assert not (pairs & (chosen[:, 1:] >= 0)).any()  # without repetition
        others = blocks[token][blocks[token] != own]
        allowed = np.arange(own) if causal else np.delete(np.arange(10), own)
        num_others = min(2, len(allowed))
        counts = np.bincount(others[others >= 0], minlength=10)
        assert counts.sum() == 500 * num_others
        assert (
            counts[own] == 0 and not counts[~np.isin(range(10), allowed)].any()
        )
        if len(allowed):
            expected = counts.sum() / len(allowed)
            spread = 5 * np.sqrt(expected)  # deviations of a count
            assert (abs(counts[allowed] - expected) < spread).all()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal_is_one_line():
    stream = Terminal()
    progress = Progress(stream)
    report = progress.stage("coverage")
    report(1, 4)
    report(2, 4)
    progress.say("wrote table.md")
    written = stream.getvalue()
    assert "coverage: 25 %" in written and "coverage: 50 %" in written
    assert written.count("\n") == 1
    assert written.endswith("\r\x1b[Kwrote table.md\n")


def test_progress_in_a_file_is_a_line_now_and_then(monkeypatch):
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    report = Progress(stream).stage("coverage")
    for step in range(8):
        report(step, 8)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 4
    assert all("coverage: " in line for line in lines)


def test_as_a_module(tmp_path, monkeypatch, capsys):
    """As `python -m` runs it."""
    words = "--pattern sliding_window --length 60 --window 5 --layers 1"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["", *words.split()])
    monkeypatch.delitem(sys.modules, "keras_sa.analysis.__main__")
    runpy.run_module("keras_sa.analysis", run_name="__main__")
    assert "| sliding_window | 4.9 | 8.167 |" in capsys.readouterr().out
    assert (tmp_path / "attention_analysis/table.md").exists()
