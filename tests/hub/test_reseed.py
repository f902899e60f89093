"""`reseed` draws what a new swap would, and compiles nothing anew."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa import hub
from keras_sa.hub.seeds import PermutationSeed
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from keras_sa.patterns import permutation as permutations
from tests.hub import models

LENGTH = 12
STOCHASTIC = {"pattern": Stochastic(4)}
FIRST, SECOND = 3, 2**32 - 1  # a seed with the sign bit, too


def inputs():
    return models.prompts((LENGTH, LENGTH - 4), LENGTH)


def variables_of(model):
    return {v.path: ops.convert_to_numpy(v) for v in model.variables}


@pytest.mark.parametrize("seed", [0, 1, 2**16, 2**31, 2**32 - 1, -1, -(2**31)])
def test_a_seed_is_read_as_it_was_given(seed):
    held = PermutationSeed(5)
    held.assign(seed)
    received = ops.convert_to_numpy(held.read())
    assert received == ops.convert_to_numpy(permutations.seed_to_int32(seed))


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": Stochastic(4, permutation_per="head")},
        {"pattern": [SlidingWindow(3), Stochastic(4) | Stochastic(2)]},
        {
            "pattern": Stochastic(4) + SlidingWindow(4),
            "resample": "never",
        },
    ],
    ids=["per_head", "interleaved", "gates"],
)
def test_draws_what_a_new_swap_does(options):
    """In functions that were compiled before; also in training."""
    model = models.build("llama")
    with hub.swap_attention(model, **options, seed=SECOND):
        expected = models.logits(model, inputs())
        variables = variables_of(model)
    swap = hub.swap_attention(model, **options, seed=FIRST)
    traced = []

    def count_and_call(x):
        traced.append(x)
        return model(x, training=False)

    compiled = backend.compile_inference(model, count_and_call)
    x = {k: ops.convert_to_tensor(v, "int32") for k, v in inputs().items()}
    before = ops.convert_to_numpy(compiled(x))
    num_traced = len(traced)
    for generator in model.backbone.attention_permutations:
        generator.next()  # as training does
    swap.reseed(SECOND)
    after = ops.convert_to_numpy(compiled(x))

    real = inputs()["padding_mask"]
    np.testing.assert_allclose(after[real], expected[real], atol=1e-5)
    assert np.abs(after - before)[real].max() > 1e-3
    if keras.config.backend() != "torch":
        assert len(traced) == num_traced
    np.testing.assert_equal(variables_of(model), variables)


def test_predict_and_generate_see_it():
    model = models.build("llama")
    model.compile(sampler="greedy")
    prompts = models.prompts((6, 6), LENGTH)

    def outputs():
        generated = model.generate(prompts, stop_token_ids=None)["token_ids"]
        logits = model.predict(inputs(), verbose=0)[inputs()["padding_mask"]]
        return np.asarray(generated), logits

    options = {**STOCHASTIC, "decode": "pattern"}
    with hub.swap_attention(model, **options, seed=SECOND):
        expected = outputs()
    swap = hub.swap_attention(model, **options, seed=FIRST)
    before = outputs()
    functions = model.generate_function, model.predict_function
    swap.reseed(SECOND)
    after = outputs()
    assert (model.generate_function, model.predict_function) == functions
    np.testing.assert_array_equal(after[0], expected[0])
    np.testing.assert_allclose(after[1], expected[1], atol=1e-5)
    for one, other in zip(before, after):
        assert not np.array_equal(one, other)


def test_it_is_kept_with_the_swap(tmp_path):
    model = models.build("llama")
    swap = hub.swap_attention(model, **STOCHASTIC, seed=FIRST)
    swap.reseed(SECOND)
    hub.save_to_preset(model, tmp_path)
    expected = models.logits(model, inputs())
    loaded = hub.from_preset(tmp_path)
    assert hub.current_swap(loaded).seed == SECOND
    np.testing.assert_allclose(
        models.logits(loaded, inputs()), expected, atol=1e-5
    )


def test_seeds_are_no_weights_and_go_with_the_swap():
    model = models.build("llama")
    weights = [v.path for v in model.weights]
    variables = [v.path for v in model.variables]
    swap = hub.swap_attention(model, **STOCHASTIC, seed=FIRST)
    assert [v.path for v in model.weights] == weights
    assert len(model.variables) > len(variables)
    swap.restore()
    assert [v.path for v in model.variables] == variables


def test_what_it_expects():
    model = models.build("llama")
    swap = hub.swap_attention(model, **STOCHASTIC, seed=FIRST)
    with pytest.raises(ValueError, match="32 bits"):
        swap.reseed(2**40)
    swap.restore()
    with pytest.raises(ValueError, match="restored or replaced"):
        swap.reseed(SECOND)
