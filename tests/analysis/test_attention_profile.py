"""Profiles of attention weights against what can be counted by hand."""

import numpy as np
import pytest

from keras_sa import analysis


def alike(length):
    """Full causal attention to all alike, `[1, 1, n, n]`."""
    return (np.tri(length) / np.arange(1, length + 1)[:, None])[None, None]


def to_previous(length, steps):
    """All weight on the token `steps` before; the first ones' on the first."""
    place = np.maximum(np.arange(length) - steps, 0)
    return np.eye(length)[place][None, None]


def test_weights_that_are_alike():
    profile = analysis.attention_profile(alike(8), window_size=3)
    rows = np.arange(1, 9)  # keys that each row sees
    np.testing.assert_allclose(profile.entropy, [np.log(rows).mean()])
    np.testing.assert_allclose(profile.evenness, [1])
    np.testing.assert_allclose(profile.mean_distance, [((rows - 1) / 2).mean()])
    local = np.minimum(rows, 3) / rows
    np.testing.assert_allclose(profile.local_mass, [local.mean()])
    np.testing.assert_allclose(profile.total, [1])
    np.testing.assert_array_equal(profile.distances, [0, 1, 2, 4])
    by_distance = [
        np.mean([sum(1 for d in range(row) if d in step) / row for row in rows])
        for step in ([0], [1], [2, 3], [4, 5, 6, 7])
    ]
    np.testing.assert_allclose(profile.mass_by_distance, [by_distance])


def test_heads_that_look_at_one_token():
    weights = np.concatenate([to_previous(9, 0), to_previous(9, 5)], axis=1)
    profile = analysis.attention_profile(weights, window_size=5)
    np.testing.assert_array_equal(profile.entropy, [0, 0])
    np.testing.assert_array_equal(profile.evenness, [0, 0])
    # Rows 0 .. 4 look at the first token, the four others 5 back.
    np.testing.assert_allclose(profile.mean_distance, [0, (10 + 4 * 5) / 9])
    np.testing.assert_allclose(profile.local_mass, [1, 5 / 9])
    np.testing.assert_array_equal(profile.distances, [0, 1, 2, 4, 8])
    np.testing.assert_allclose(
        profile.mass_by_distance,
        [[1, 0, 0, 0, 0], [1 / 9, 1 / 9, 2 / 9, 5 / 9, 0]],
    )


def test_windows_of_both_kinds():
    weights = np.full((1, 1, 5, 5), 0.2)
    window = {"weights": weights, "window_size": 4}
    causal = analysis.attention_profile(**window)
    symmetric = analysis.attention_profile(**window, is_causal=False)
    # 0, 1, 2, 3 tokens back; 2 back to 1 ahead. Cut at the ends.
    assert causal.local_mass == pytest.approx((1 + 2 + 3 + 4 + 4) / 25)
    assert symmetric.local_mass == pytest.approx((2 + 3 + 4 + 4 + 3) / 25)
    assert causal.mean_distance == pytest.approx(40 / 25)
    np.testing.assert_allclose(
        causal.mass_by_distance, [[5 / 25, 8 / 25, 10 / 25, 2 / 25]]
    )


def test_rows_are_taken_by_their_shares():
    """Sinks and gates change what a row sums to, and nothing else."""
    factor = np.linspace(0.2, 1.9, 8)[:, None]
    expected = analysis.attention_profile(alike(8), 3)
    received = analysis.attention_profile(alike(8) * factor, 3)
    for name in vars(expected):
        if name != "total":
            np.testing.assert_allclose(
                getattr(received, name), getattr(expected, name)
            )
    np.testing.assert_allclose(received.total, [factor.mean()])


def test_padding_is_left_out():
    rng = np.random.default_rng(0)
    whole = np.tril(rng.uniform(size=(2, 3, 6, 6)))
    padded = np.zeros((3, 3, 8, 8), "float32")
    padded[:2, :, :6, :6] = whole  # and the third text is all padding
    expected = analysis.attention_profile(whole, 2)
    received = analysis.attention_profile(padded, 2)
    for name in ("entropy", "evenness", "mean_distance", "local_mass", "total"):
        np.testing.assert_allclose(
            getattr(received, name), getattr(expected, name), rtol=1e-6
        )


def test_rows_of_all_texts_count_alike():
    weights = np.zeros((2, 1, 4, 4))
    weights[0, 0] = np.eye(4)  # four rows that look at themselves
    weights[1, 0, 3, 1] = 0.5  # one that looks two tokens back
    profile = analysis.attention_profile(weights, 1)
    assert profile.mean_distance == pytest.approx(2 / 5)
    assert profile.local_mass == pytest.approx(4 / 5)
    assert profile.total == pytest.approx(4.5 / 5)


def test_a_single_token():
    profile = analysis.attention_profile(np.ones((1, 2, 1, 1)), 1)
    np.testing.assert_array_equal(profile.evenness, [0, 0])
    np.testing.assert_array_equal(profile.mass_by_distance, [[1], [1]])
    np.testing.assert_array_equal(profile.distances, [0])


def test_a_profile_stays_as_it_is():
    profile = analysis.attention_profile(alike(4), 2)
    with pytest.raises(AttributeError):
        profile.entropy = None


@pytest.mark.parametrize(
    "weights, match",
    [
        (np.ones((2, 3, 3)), r"batch, heads, n, n.*\(2, 3, 3\)"),
        (np.ones((1, 2, 3, 4)), r"batch, heads, n, n.*\(1, 2, 3, 4\)"),
        (np.ones((1, 0, 3, 3)), r"batch, heads, n, n.*\(1, 0, 3, 3\)"),
        (-alike(3), "not negative.*from -1.0 to"),
        (alike(3) * np.nan, "finite.*nan"),
        (np.zeros((1, 2, 3, 3)), r"every head.*\[0, 1\]"),
    ],
)
def test_bad_weights(weights, match):
    with pytest.raises(ValueError, match=match):
        analysis.attention_profile(weights, 2)


@pytest.mark.parametrize("window_size", [0, 1.5, None])
def test_bad_window(window_size):
    with pytest.raises(ValueError, match="`window_size` is expected"):
        analysis.attention_profile(alike(3), window_size)
