"""Swaps within swaps, and swaps that fail: what is in place then."""

import keras
import numpy as np
import pytest

from keras_sa import hub
from keras_sa.hub import attention
from keras_sa.hub.families import registry
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models
from tests.hub.test_swap import everything_about

LENGTH = 9
SEED = 3
GATED = Stochastic(4) + SlidingWindow(3)


def logits(model):
    return models.logits(model, models.prompts([LENGTH] * 2, LENGTH))


def assert_same(received, expected):
    np.testing.assert_array_equal(received, expected)


def state(model):
    """`everything_about` where the classes of swapped layers are made anew."""
    types, *others = everything_about(model)
    return [[x.__name__ for x in t.__mro__] for t in types], *others


def gated_model():
    """A model under a gated swap whose gates learned something."""
    model = models.build("llama")
    swap = hub.swap_attention(model, GATED, seed=SEED)
    for gate in swap.gates:
        gate.kernel.assign(keras.random.normal(gate.kernel.shape, seed=5))
    return model, swap


def test_swapping_again_replaces():
    model = models.build("llama")
    before = everything_about(model)
    with hub.swap_attention(model, Stochastic(4), seed=SEED):
        expected = logits(model)
    first = hub.swap_attention(model, GATED)
    hub.swap_attention(model.backbone, SlidingWindow(2))
    last = hub.swap_attention(model, Stochastic(4), seed=SEED)
    assert_same(logits(model), expected)
    first.restore()  # it is not in place any more: nothing happens
    assert_same(logits(model), expected)
    last.restore()
    assert everything_about(model) == before


def test_leaving_a_block_brings_the_outer_swap_back():
    """With its seeds, and with what its gates learned."""
    model = models.build("llama")
    before, plain = everything_about(model), logits(model)
    with hub.swap_attention(model, GATED, seed=SEED) as outer:
        outer.gates[0].bias.assign([[1.0] * 4, [-1.0] * 4])
        outer.reseed(SEED + 1)
        expected, within = logits(model), state(model)
        with hub.swap_attention(model.backbone, SlidingWindow(2)) as inner:
            assert hub.current_swap(model) is inner
            assert not any("attention_gate" in v.path for v in model.variables)
            with hub.swap_attention(model, Stochastic(3) + Stochastic(3)):
                assert np.abs(logits(model) - expected).max() > 1e-3
            assert hub.current_swap(model) is inner
        assert hub.current_swap(model) is outer
        assert state(model) == within
        assert_same(logits(model), expected)
    assert everything_about(model) == before
    assert_same(logits(model), plain)


def test_a_block_brings_back_a_swap_that_has_none():
    model, outer = gated_model()
    expected = logits(model)
    with hub.swap_attention(model, SlidingWindow(2)) as inner:
        pass
    assert hub.current_swap(model) is outer
    assert_same(logits(model), expected)
    with pytest.raises(ValueError, match="restored or replaced"):
        with inner:
            pass
    with hub.swap_attention(model, SlidingWindow(2)) as inner:
        inner.restore()  # by hand: as leaving the block
        assert hub.current_swap(model) is outer
    assert hub.current_swap(model) is outer


def test_what_is_swapped_in_within_a_block_ends_with_it():
    model, outer = gated_model()
    expected = logits(model)
    with hub.swap_attention(model, SlidingWindow(2)):
        hub.swap_attention(model, Stochastic(3))
        last = hub.swap_attention(model, GATED)
    assert hub.current_swap(model) is outer
    assert_same(logits(model), expected)
    last.restore()
    assert hub.current_swap(model) is outer
    with hub.swap_attention(model, SlidingWindow(2)):
        hub.swap_attention(model, Stochastic(3)).restore()
        assert hub.current_swap(model) is None
    assert hub.current_swap(model) is outer


def test_an_error_ends_the_block_as_well():
    model, outer = gated_model()
    with pytest.raises(ZeroDivisionError):
        with hub.swap_attention(model, SlidingWindow(2)):
            raise ZeroDivisionError
    assert hub.current_swap(model) is outer


def check_failure(model, fail):
    """What was in place is in place, with all its variables."""
    before, expected = state(model), logits(model)
    swap = hub.current_swap(model)
    with pytest.raises((ValueError, RuntimeError)):
        fail()
    assert hub.current_swap(model) is swap
    assert state(model) == before
    assert_same(logits(model), expected)


@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_swap_that_fails_leaves_what_was_there(is_swapped, monkeypatch):
    model, swap = gated_model()
    if not is_swapped:
        swap.restore()
    check_failure(model, lambda: hub.swap_attention(model, "stochastic"))
    check_failure(
        model, lambda: hub.swap_attention(model, Stochastic(4), layers=[9])
    )
    calls = []
    install = attention.SwappedAttention.install

    def fail_at_the_second(self, stack):
        calls.append(self)
        if len(calls) == 2:
            raise RuntimeError("of the second layer")
        install(self, stack)

    with monkeypatch.context() as patch:
        patch.setattr(attention.SwappedAttention, "install", fail_at_the_second)
        check_failure(model, lambda: hub.swap_attention(model, GATED))
        assert len(calls) >= 2


def test_a_swap_that_is_not_verified_leaves_what_was_there():
    class Hotter(hub.Family):
        def scale(self, attention):
            return 2 * attention._inv_norm_factor

    model, _ = gated_model()
    known = registry._FAMILIES["LlamaTransformerDecoder"]
    with hub.swap_attention(model, GATED, verify=True):
        pass
    hub.register_family(Hotter("LlamaTransformerDecoder"))
    try:
        with pytest.raises(ValueError, match="does not understand"):
            hub.swap_attention(model, Stochastic(4), verify=True)
        check_failure(
            model,
            lambda: hub.swap_attention(model, Stochastic(4), verify=True),
        )
    finally:
        hub.register_family(known)
