"""All backends give the perplexities of recorded_perplexities.json."""

import json

import pytest
import recorded_perplexities
from recorded_perplexities import SWAPS


@pytest.fixture(scope="module")
def scorer():
    return recorded_perplexities.make_scorer()


@pytest.fixture(scope="module")
def recorded():
    return json.loads(recorded_perplexities.FILE.read_text())


@pytest.mark.parametrize("name", SWAPS)
def test_perplexity_is_the_recorded_one(scorer, recorded, name):
    result = recorded_perplexities.measure(scorer, name)
    assert result.num_tokens == 69 + 19 + 32
    assert result.perplexity == pytest.approx(recorded[name], rel=1e-4)


def test_attentions_differ_by_more_than_the_tolerance(recorded):
    assert set(recorded) == set(SWAPS)
    perplexities = sorted(recorded.values())
    for low, high in zip(perplexities, perplexities[1:]):
        assert high / low > 1.001
