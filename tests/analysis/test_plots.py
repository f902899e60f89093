"""Figures have the data that they were given."""

import types
import xml.etree.ElementTree

import numpy as np
import pytest
from keras import ops

from keras_sa import analysis
from keras_sa import patterns

pytest.importorskip("matplotlib")
from keras_sa.analysis import plots  # noqa: E402

SMALL_WORLD = (patterns.Stochastic(6) | patterns.SlidingWindow(4)).bind(
    seed=1, is_causal=True
)


def image_of(axes):
    return np.asarray(axes.images[0].get_array().filled(np.nan))


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines_of(axes):
    """`{label: (x, y)}`, also of curves with error bars."""
    lines = {line.get_label(): line.get_data() for line in axes.lines}
    for container in axes.containers:
        lines[container.get_label()] = container.lines[0].get_data()
    return lines


def colours_of(axes):
    """What each entry of an image looks like: `[n, n, 4]`."""
    image = axes.images[0]
    return image.cmap(image.norm(image.get_array()))


def test_pattern_is_the_mask():
    figure = plots.plot_pattern(SMALL_WORLD, 60)
    mask = ops.convert_to_numpy(SMALL_WORLD.mask(60))
    white = (colours_of(figure.axes[0]) == 1).all(axis=-1)
    np.testing.assert_array_equal(white, ~mask)


def test_pattern_tells_apart_through_what_a_token_is_seen():
    figure = plots.plot_pattern(SMALL_WORLD, 60)
    kinds = legend_of(figure)
    assert kinds == [
        "itself",
        "SlidingWindow",
        "Stochastic",
        "several of them",
    ]
    local = ops.convert_to_numpy(
        patterns.SlidingWindow(4).mask(60, is_causal=True)
    )
    random = patterns.Stochastic(6).bind(seed=1, is_causal=True).mask(60)
    random = ops.convert_to_numpy(random)
    itself = np.eye(60, dtype=bool)
    expected = (
        itself,
        local & ~random,
        random & ~local,
        random & local & ~itself,
    )
    colours = colours_of(figure.axes[0])
    handles = figure.legends[0].legend_handles
    for handle, mask in zip(handles, expected):
        drawn = np.isclose(colours, handle.get_facecolor()).all(axis=-1)
        np.testing.assert_array_equal(drawn, mask)


@pytest.mark.parametrize(
    "pattern, kind",
    [
        (patterns.Full(), "Full"),
        (patterns.SlidingWindow(5), "SlidingWindow"),
        (patterns.Stochastic(5), "Stochastic"),
        (patterns.Stochastic(5) + patterns.Stochastic(4), "Stochastic"),
        (
            patterns.BlockRouted(2, 1).bind(
                routes=np.arange(60)[:, None, None] // 2
            ),
            "BlockRouted",
        ),
    ],
)
def test_kinds_of_patterns(pattern, kind):
    assert legend_of(plots.plot_pattern(pattern, 60)) == ["itself", kind]


def test_pattern_has_a_panel_for_each_layer():
    stack = [patterns.SlidingWindow(5), patterns.Full()] * 3
    figure = plots.plot_pattern(stack, 60, is_causal=True)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["layer 0: SlidingWindow(5)", "layer 1: Full()"]
    assert len(titles) == 6
    for axes in figure.axes:
        assert axes.get_xlabel() == "key"
        assert axes.get_ylabel() == "query"
        # The first token sees nobody else.
        assert (image_of(axes)[0, 1:] == 0).all()


def test_pattern_takes_titles():
    layers = {"near": patterns.SlidingWindow(5), "all": patterns.Full()}
    figure = plots.plot_pattern(layers, 60)
    assert [axes.get_title() for axes in figure.axes] == ["near", "all"]
    with pytest.raises(ValueError, match="one layer. Received: 2 layers"):
        plots.plot_pattern({"near": [patterns.SlidingWindow(5)] * 2}, 8)
    with pytest.raises(ValueError, match="`source` is expected"):
        plots.plot_pattern({}, 8)


@pytest.mark.parametrize("length", [0, 2049])
def test_length_of_a_pattern(length):
    with pytest.raises(ValueError, match=f"Received: length={length}"):
        plots.plot_pattern(SMALL_WORLD, length)


def test_coverage_against_depth():
    window = [patterns.SlidingWindow(5).bind(is_causal=True)] * 6
    random = [
        patterns.Stochastic(5).bind(seed=i, is_causal=True) for i in range(6)
    ]
    fields = {
        "near": analysis.receptive_field(window, 60),
        "random": analysis.receptive_field(random, 60, num_sources=20),
    }
    expected = {"random": analysis.expected_coverage(random, 60)}
    figure = plots.plot_coverage(fields, expected, fraction=0.3)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "depth in layers"
    assert axes.get_ylabel() == "coverage in % of the past"
    depths = [np.argmax(fields[x].coverage >= 0.3) for x in fields]
    assert legend_of(figure) == [
        f"near (30 % at depth {depths[0]})",
        f"random (30 % at depth {depths[1]})",
        "theory",
    ]
    lines = lines_of(axes)
    for label, name in zip(legend_of(figure), fields):
        x, y = lines[label]
        np.testing.assert_array_equal(x, np.arange(7))
        np.testing.assert_allclose(y, 100 * fields[name].coverage)
    _, theory = lines["theory"]
    np.testing.assert_allclose(theory, 100 * expected["random"])
    # Only what was sampled has error bars; both have a ring at their depth.
    near, random = axes.containers
    assert not near.has_yerr and random.has_yerr
    (bars,) = random.lines[2]
    heights = [np.ptp(bar[:, 1]) for bar in bars.get_segments()]
    errors = fields["random"].standard_error
    np.testing.assert_allclose(heights, 4 * 100 * errors, atol=1e-9)
    rings = [c for c in axes.collections if c.get_offsets().any()]
    assert [ring.get_offsets()[0, 0] for ring in rings] == depths


def test_coverage_that_is_not_reached():
    stack = [patterns.SlidingWindow(5)] * 2
    field = analysis.receptive_field(stack, 60)
    figure = plots.plot_coverage({"near": field})
    assert legend_of(figure) == ["near (99 % not reached)"]
    assert figure.axes[0].get_ylabel() == "coverage in % of the text"


def test_curves_differ_without_colours():
    field = analysis.receptive_field([patterns.SlidingWindow(5)] * 2, 60)
    figure = plots.plot_coverage({f"curve {i}": field for i in range(7)})
    lines = [container.lines[0] for container in figure.axes[0].containers]
    assert len({line.get_marker() for line in lines}) == 7
    assert len({line.get_color() for line in lines}) == 7


def test_bad_coverage():
    field = analysis.receptive_field([patterns.SlidingWindow(5)] * 2, 60)
    with pytest.raises(ValueError, match="`fields` is expected.*at most 7"):
        plots.plot_coverage({str(i): field for i in range(8)})
    with pytest.raises(ValueError, match="`fields` is expected"):
        plots.plot_coverage({})
    with pytest.raises(ValueError, match="`expected`.*Received: \\['b'\\]"):
        plots.plot_coverage({"a": field}, {"b": field.coverage})
    with pytest.raises(ValueError, match="Received: fraction=99"):
        plots.plot_coverage({"a": field}, fraction=99)


def test_gates():
    both, local = np.array([[0.1, 0.2, 0.3], [0.9, 0.8, 0.7]]), [[0.5, 0.4]]
    figure = plots.plot_gates([both, local])
    first, second = figure.axes[:2]
    assert first.get_title() == "term 0"
    assert second.get_title() == "term 1"
    nothing = np.nan
    np.testing.assert_array_equal(
        image_of(second), [[0.9, 0.8, 0.7], [nothing] * 3]
    )
    np.testing.assert_array_equal(
        image_of(first), [[0.1, 0.2, 0.3], [0.5, 0.4, nothing]]
    )
    assert [text.get_text() for text in first.texts] == [
        "0.10",
        "0.20",
        "0.30",
        "0.50",
        "0.40",
    ]
    assert first.texts[3].get_position() == (0, 1)  # head 0 of layer 1
    assert first.images[0].get_clim() == (0, 1)
    assert first.get_xlabel() == "head" and first.get_ylabel() == "layer"


def test_gates_have_the_names_of_their_terms():
    pattern = patterns.Stochastic(8) + patterns.SlidingWindow(4)
    names = list(map(repr, pattern.terms))
    figure = plots.plot_gates([np.full((2, 3), 0.5)], names)
    assert [axes.get_title() for axes in figure.axes[:2]] == names
    with pytest.raises(ValueError, match="to have 2 names. Received: terms="):
        plots.plot_gates([np.full((2, 3), 0.5)], names[:1])


def test_gates_of_windows_alone():
    figure = plots.plot_gates([[[0.5, 0.4]], [[0.3, 0.2]]])
    assert figure.axes[0].get_title() == "term 0"
    np.testing.assert_array_equal(
        image_of(figure.axes[0]), [[0.5, 0.4], [0.3, 0.2]]
    )


def test_many_gates_have_no_numbers():
    figure = plots.plot_gates([np.full((2, 32), 0.5)] * 24)
    assert not figure.axes[0].texts


@pytest.mark.parametrize(
    "gates, words",
    [
        ([], "at least one layer. Received: gates="),
        ([[0.5, 0.5]], "Received: shape \\(2,\\)"),
        ([np.full((3, 0), 0.5)], "Received: shape \\(3, 0\\)"),
        ([[[0.5, 1.5]]], "Received: from 0.5 to 1.5"),
        ([[[0.5, np.nan]]], "between 0 and 1"),
    ],
)
def test_bad_gates(gates, words):
    with pytest.raises(ValueError, match=words):
        plots.plot_gates(gates)


def test_attention_profile():
    profiles = [
        types.SimpleNamespace(
            entropy=[1.0 * layer, 2.0],
            local_mass=[0.25, 0.5],
            mean_distance=[10.0, 300.0 * layer],
            window_size=16,
        )
        for layer in (1, 2)
    ]
    figure = plots.plot_attention_profile(profiles)
    panels = {axes.get_title(): axes for axes in figure.axes if axes.images}
    assert list(panels)[:3] == [
        "entropy",
        "local mass, window 16",
        "mean distance",
    ]
    np.testing.assert_array_equal(image_of(panels["entropy"]), [[1, 2], [2, 2]])
    np.testing.assert_array_equal(
        image_of(panels["mean distance"]), [[10, 300], [10, 600]]
    )
    assert panels["local mass, window 16"].images[0].get_clim() == (0, 1)


def test_bad_profiles():
    with pytest.raises(ValueError, match="`profiles` is expected"):
        plots.plot_attention_profile([])
    profile = types.SimpleNamespace(entropy=1.0)
    with pytest.raises(ValueError, match="`entropy`.*Received: shape \\(\\)"):
        plots.plot_attention_profile([profile])


def test_saves_png_and_svg_without_a_display(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    figure = plots.plot_gates([[[0.5, 0.4]]])
    path = plots.save(figure, tmp_path / "new" / "gates.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    path = plots.save(figure, str(tmp_path / "gates.SVG"))
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_figure_is_the_same_file(tmp_path):
    paths = [
        plots.save(plots.plot_gates([[[0.5, 0.4]]]), tmp_path / name)
        for name in ("one.svg", "other.svg")
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_png_is_fine_enough_for_print(tmp_path):
    figure = plots.plot_gates([[[0.5, 0.4]]])
    path = plots.save(figure, tmp_path / "gates.png")
    width = int.from_bytes(path.read_bytes()[16:20], "big")  # in dots
    assert width >= 150 * 0.8 * figure.get_size_inches()[0]


@pytest.mark.parametrize("name", ["gates.pdf", "gates"])
def test_other_formats(name, tmp_path):
    figure = plots.plot_gates([[[0.5, 0.4]]])
    with pytest.raises(ValueError, match="'png', 'svg'.*Received: path="):
        plots.save(figure, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_no_state_of_pyplot():
    """A library that leaves figures open runs out of memory."""
    import matplotlib.pyplot as plt

    plots.plot_gates([[[0.5, 0.4]]])
    assert plt.get_fignums() == []
