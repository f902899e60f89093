"""The command line, `python -m keras_sa.analysis`."""

import io
import runpy
import shlex
import sys

import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

pytest.importorskip("matplotlib")
from keras_sa.analysis import __main__ as command  # noqa: E402
from keras_sa.analysis.command import pattern_report  # noqa: E402
from keras_sa.analysis.command import stacks  # noqa: E402
from keras_sa.analysis.command.arguments import parse  # noqa: E402
from keras_sa.analysis.command.progress import Progress  # noqa: E402

LENGTH = 60  # of all, so that compiled backends compile little


def run(words, capsys, tmp_path):
    """The rows of the table by their name, the notes, and stderr."""
    output = ["--output", str(tmp_path / "new")]
    command.main([*shlex.split(words), *output])
    output = capsys.readouterr()
    assert (tmp_path / "new/table.md").read_text() == output.out
    lines = output.out.splitlines()
    table = [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in lines
        if line.startswith("|")
    ]
    columns, _, *rows = table
    rows = {row[0]: dict(zip(columns, row)) for row in rows}
    return rows, output.out, output.err


def files_of(tmp_path):
    return sorted(path.name for path in (tmp_path / "new").iterdir())


BOTH = "Stochastic(5) | SlidingWindow(4)"


def test_a_pattern(capsys, tmp_path):
    words = f"--pattern '{BOTH}' --length 60 --layers 3 --is-causal --seed 3"
    rows, text, messages = run(words, capsys, tmp_path)
    name = BOTH.replace("|", "\\|")
    assert list(rows) == [name]
    row = rows[name]
    # Every layer has the seed of its place, as in a swapped model.
    pattern = Stochastic(5) | SlidingWindow(4)
    stack = stacks.make_stack(pattern, parse(shlex.split(words)), LENGTH)
    assert len({bound.seed for bound in stack}) == 3
    swapped = analysis.as_patterns([pattern] * 3, True, seed=3)
    assert [x.seed for x in stack] == [x.seed for x in swapped]
    field = analysis.receptive_field(stack, LENGTH)
    for depth in (1, 2, 3):
        found = float(row[f"depth {depth}"])
        assert found == pytest.approx(100 * field.coverage[depth], rel=1e-3)
    mask = ops.convert_to_numpy(stack[0].mask(LENGTH))
    keys = float(row["keys per token"])
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
    assert "n = 60 tokens, 3 layers, causal, seed 3" in text
    assert "equally many keys" not in text
    assert files_of(tmp_path) == ["coverage.png", "pattern.png", "table.md"]
    assert "wrote " in messages and "table.md" in messages


def test_all_patterns(capsys, tmp_path):
    heads = "Stochastic(5, 'block', 'head')"
    patterns = [
        "Full()",
        "SlidingWindow(5)",
        heads,
        f"{heads} + SlidingWindow(5)",
        "BlockRouted(4, 2)",
        "SlidingWindow(5) | GlobalQueries(last=3)",
    ]
    words = shlex.join(["--pattern", *patterns])
    rows, text, _ = run(
        f"{words} --length 60 --layers 10 --heads 2 --format svg "
        "--graph-layers 2",
        capsys,
        tmp_path,
    )
    full, window, stochastic, small_world, routed, question = rows.values()
    assert full["keys per token"] == "60"
    assert full["depth 1"] == full["depth 10"] == "100"
    assert full["100 % at depth"] == full["diameter"] == "1"
    assert window["99 % at depth"] == "> 10"
    assert window["degree"] == "3.9"  # 4, but for the ends
    depths = [x for x in full if x.startswith("depth")]
    assert depths == [f"depth {d}" for d in (1, 2, 4, 8, 10)]
    # Heads that choose or draw for themselves attend to more together.
    assert float(stochastic["keys per token"]) > 6
    assert float(small_world["keys per token"]) > 10
    assert float(routed["keys per token"]) > 8
    assert float(question["keys per token"]) > 7
    assert "BlockRouted: the blocks are a random choice" in text
    assert "do not attend to equally many keys" in text
    assert "of the undirected graph of 2 layers together" in text
    assert files_of(tmp_path) == ["coverage.svg", "pattern.svg", "table.md"]


def test_measures_that_are_asked_for(capsys, tmp_path):
    rows, text, _ = run(
        "--pattern 'Stochastic(5)' --length 60 --layers 2 --measures mixing",
        capsys,
        tmp_path,
    )
    row = rows["Stochastic(5)"]
    assert list(row) == [
        "pattern",
        "keys per token",
        "total variation",
        "gap of a layer",
        "gap of the stack",
    ]
    stack = analysis.as_patterns([Stochastic(5)] * 2)
    for column, value in (
        ("total variation", analysis.total_variation(stack, LENGTH).mean[-1]),
        ("gap of the stack", analysis.spectral_gap(stack, LENGTH).product_gap),
    ):
        assert float(row[column]) == pytest.approx(value, rel=1e-3)
    assert files_of(tmp_path) == ["pattern.png", "table.md"]


def test_samples(capsys, tmp_path):
    rows, text, _ = run(
        "--pattern 'SlidingWindow(5)' --length 60 --layers 3 --samples 9",
        capsys,
        tmp_path,
    )
    assert "From a random sample of 9 tokens" in text
    assert "±" in rows["SlidingWindow(5)"]["depth 1"]
    assert "±" in rows["SlidingWindow(5)"]["path length"]


def test_the_same_permutation_reaches_no_further(capsys, tmp_path):
    words = "--pattern 'Stochastic(5)' --length 60 --layers 3 "
    words += "--measures receptive_field "
    same, _, _ = run(f"{words} --same-seed", capsys, tmp_path)
    other, _, _ = run(words, capsys, tmp_path)
    same, other = same["Stochastic(5)"], other["Stochastic(5)"]
    # A window of 5 slots becomes one of 13, or about 5**3 tokens.
    assert float(same["depth 1"]) == float(other["depth 1"])
    assert float(same["depth 3"]) < 100 * 13 / LENGTH
    assert float(other["depth 3"]) > 3 * 100 * 13 / LENGTH


def test_full_attention_builds_no_large_graph(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pattern_report, "_MOST_FULL", LENGTH - 1)
    words = "--pattern 'Full()' --length 60 --layers 1"
    rows, text, _ = run(words, capsys, tmp_path)
    assert "degree" not in rows["Full()"] and rows["Full()"]["depth 1"] == "100"
    assert (
        "Full(): no small_world, for there would be up to 3,600 edges" in text
    )


def test_what_is_too_large_for_memory_is_left_out(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(pattern_report, "_MOST_EDGES", 300)
    words = "--pattern 'SlidingWindow(5)' 'Stochastic(5)' --length 60"
    words += " --measures small_world --layers 2"
    rows, text, _ = run(words, capsys, tmp_path)
    assert rows["Stochastic(5)"]["degree"]
    rows, text, _ = run(f"{words} --graph-layers 2", capsys, tmp_path)
    assert "degree" not in rows["Stochastic(5)"]
    assert "Stochastic(5): no small_world" in text


def test_nobody_attends_to_another(capsys, tmp_path):
    words = "--pattern 'SlidingWindow(1)' --length 60 --layers 1"
    rows, text, _ = run(words, capsys, tmp_path)
    assert rows["SlidingWindow(1)"]["depth 1"] == "1.667"
    assert "no small_world, for no token attends to another" in text


WINDOW = "--pattern Stochastic(4) --length 30"


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "required: --pattern, --length"),
        ("--pattern ring --length 9", "here one of BlockRouted, Full"),
        ("--pattern Full() Full() --length 9", "every pattern is expected onc"),
        ("--pattern Full()", "required: --length"),
        ("--pattern Stochastic() --length 9", "other arguments"),
        ("--pattern Stochastic(0) --length 9", "`window_size` is expected"),
        (f"{WINDOW} --samples 31", "--samples is expected to be at most"),
        (f"{WINDOW} --layers 2 --graph-layers 3", "at most --layers 2"),
        (
            f"{WINDOW} --graph-layers 1 --measures mixing",
            "--graph-layers is expected with the measure small_world",
        ),
        (f"{WINDOW} --seed -1", "from 0 to 2**32 - 1"),
        (f"{WINDOW} --layers 0", "a positive integer is expected"),
    ],
)
def test_wrong_arguments(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        parse(words.split())
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("is_causal", [False, True])
def test_random_blocks_are_different_and_alike_in_number(is_causal):
    blocks = stacks.random_blocks(40, 4, 3, 500, is_causal, seed=0)
    assert blocks.shape == (40, 500, 3)
    for token in (0, 5, 8, 22, 39):
        own = token // 4
        chosen = np.sort(blocks[token], axis=1)
        pairs = chosen[:, 1:] == chosen[:, :-1]
        assert not (pairs & (chosen[:, 1:] >= 0)).any()  # without repetition
        others = blocks[token][blocks[token] != own]
        allowed = np.arange(own) if is_causal else np.delete(np.arange(10), own)
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
    words = "--pattern SlidingWindow(5) --length 60 --layers 1"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["", *words.split()])
    monkeypatch.delitem(sys.modules, "keras_sa.analysis.__main__")
    runpy.run_module("keras_sa.analysis", run_name="__main__")
    assert "| SlidingWindow(5) | 4.9 | 8.167 |" in capsys.readouterr().out
    assert (tmp_path / "attention_analysis/table.md").exists()
