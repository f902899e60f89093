"""The named attentions come as near to a budget as their kind can."""

import pytest

from examples.shared.attentions import ATTENTIONS
from examples.shared.attentions import pattern_at
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import GatedSum
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

LENGTH, BUDGET = 64, 8
# As the results in docs were measured.
KNOWN = {
    "sliding_window": SlidingWindow(8),
    "stochastic": Stochastic(16),
    "stochastic_block": Stochastic(15, neighborhood="block"),
    "small_world": Stochastic(7) + SlidingWindow(4),
    "small_world_softmax": Stochastic(10) | SlidingWindow(4),
    "block_routed": BlockRouted(3, 3),
    "gated_window": GatedSum(SlidingWindow(8)),
    "two_windows": SlidingWindow(4) + SlidingWindow(4),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_budget_has_the_windows_of_the_results(name):
    assert pattern_at(name, BUDGET, LENGTH) == KNOWN[name]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_budget_is_met(name):
    pattern = pattern_at(name, BUDGET, LENGTH)
    keys = pattern.keys_per_token(LENGTH, is_causal=True)
    wanted = {"full": (LENGTH + 1) / 2, "half_window": BUDGET / 2}
    assert keys == pytest.approx(wanted.get(name, BUDGET), abs=0.5)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_covers_everything_is_the_narrowest(name):
    pattern = pattern_at(name, 10 * LENGTH, LENGTH)
    keys = pattern.keys_per_token(LENGTH, is_causal=True)
    terms = len(pattern.terms) if "gates" in pattern.needs() else 1
    assert keys == pytest.approx(terms * (LENGTH + 1) / 2)
    if name == "sliding_window":
        assert pattern == SlidingWindow(LENGTH)
