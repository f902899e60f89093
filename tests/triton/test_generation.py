"""A KerasHub model that reads its prompt and generates with the kernels."""

import keras
import numpy as np
import pytest

from keras_sa import hub
from keras_sa.ops.neighbors import api as neighbors_api
from keras_sa.ops.windowed import api as windowed_api
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

pytestmark = pytest.mark.skipif(
    keras.config.backend() not in ("jax", "torch"),
    reason="the kernels run on torch and JAX",
)
APIS = {"windowed": windowed_api, "neighbors": neighbors_api}


@pytest.fixture
def used(monkeypatch):
    """The implementations that ran, as `(api, name)`."""
    found = []

    def note(module, entry):
        forward = module.forward

        def noting(arguments):
            found.append(entry)
            return forward(arguments)

        monkeypatch.setattr(module, "forward", noting)

    for kind, api in APIS.items():
        for name, module in api.IMPLEMENTATIONS[keras.config.backend()].items():
            note(module, (kind, name))
    return found


def generate():
    """Greedy tokens of a model with grouped heads and sinks."""
    causal_lm = models.build("gpt_oss")
    causal_lm.compile(sampler="greedy")
    hub.swap_attention(
        causal_lm,
        Stochastic(5) | SlidingWindow(3),
        decode="pattern",
        layers="all",
        seed=3,
    )
    prompts = models.prompts((7, 5), 11)
    return causal_lm.generate(prompts, stop_token_ids=None)["token_ids"]


def test_generation(used, monkeypatch):
    fused = generate()
    assert {("windowed", "triton"), ("neighbors", "triton")} <= set(used)
    assert not any(name == "portable" for _, name in used)
    used.clear()
    for api in APIS.values():
        table = api.IMPLEMENTATIONS[keras.config.backend()]
        monkeypatch.delitem(table, "triton")
    other = generate()
    assert {kind for kind, _ in used} == set(APIS)
    assert {name for _, name in used} <= {"portable", "sdpa"}
    np.testing.assert_array_equal(fused, other)
    assert len(np.unique(fused)) > 4
