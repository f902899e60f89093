"""Prompts go on as if each were alone."""

import keras_hub
import pytest
import tiny_models

from keras_sa import hub
from keras_sa.evaluation.generation import ROOM
from keras_sa.evaluation.generation import TokenGenerator
from keras_sa.evaluation.generation import make_sampler
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

NEW = 6
MAX_LENGTH = 40  # less than what a cache is rounded up to
LENGTHS = (5, 9, 5, 5)


@pytest.fixture(scope="module")
def prompts():
    return tiny_models.random_sequences(LENGTHS)


def make_generator(causal_lm, **options):
    return TokenGenerator(
        causal_lm, **{"batch_size": 2, "max_length": MAX_LENGTH, **options}
    )


@pytest.fixture(scope="module")
def generator(causal_lm):
    return make_generator(causal_lm)


def test_each_token_is_the_most_probable_one(causal_lm, generator, prompts):
    written = generator.generate(prompts, NEW)
    assert [len(tokens) for tokens in written] == [NEW] * 4
    rows = [[*x, *y[:-1]] for x, y in zip(prompts, written)]
    log_softmax = tiny_models.log_softmax(causal_lm, *tiny_models.pad(rows))
    for prompt, row, of_row, tokens in zip(prompts, rows, log_softmax, written):
        best = of_row[len(prompt) - 1 : len(row)].argmax(-1)
        assert best.tolist() == tokens


@pytest.mark.parametrize(
    "swap",
    [
        {"pattern": SlidingWindow(3)},
        {"pattern": Stochastic(3), "decode": "pattern"},
    ],
    ids=lambda swap: repr(swap["pattern"]),
)
def test_other_prompts_change_nothing(causal_lm, generator, prompts, swap):
    before = generator.generate(prompts, NEW)
    with hub.swap_attention(causal_lm, **swap, seed=2):
        together = generator.generate(prompts, NEW)
        backwards = generator.generate(prompts[::-1], NEW)[::-1]
        alone = generator.generate(prompts[1:2], NEW)
    assert together == backwards
    assert together[1] == alone[0]
    assert together != before
    assert generator.generate(prompts, NEW) == before


def test_stop_tokens_end_a_text_and_are_left_out(causal_lm, generator, prompts):
    whole = generator.generate(prompts, NEW)
    # Zero is also what rows are usually filled up with.
    stops = 0, whole[1][2]
    assert any(0 in tokens for tokens in whole)
    expected = []
    for tokens in whole:
        ends = [tokens.index(stop) for stop in stops if stop in tokens]
        expected.append(tokens[: min(ends, default=NEW)])
    stopping = make_generator(causal_lm, stop_token_ids=stops)
    assert stopping.generate(prompts, NEW) == expected


def test_long_prompts_are_cut_at_their_beginning(generator):
    (prompt,) = tiny_models.random_sequences([50])
    cut = prompt[-(MAX_LENGTH - NEW) :]
    assert generator.generate([prompt], NEW) == generator.generate([cut], NEW)
    with pytest.raises(ValueError, match="max_length`, 40. Received: 40 new"):
        generator.generate([prompt], MAX_LENGTH)


def test_tokens_are_drawn_with_a_temperature(causal_lm, prompts):
    twins = [make_generator(causal_lm, seed=1) for _ in range(2)]
    first, again = (
        [twin.generate(prompts[:1], NEW, temperature=50.0) for _ in range(2)]
        for twin in twins
    )
    assert first == again
    assert first[0] != first[1]  # the second draws further numbers


def test_the_model_s_own_settings_come_back(causal_lm, generator, prompts):
    sampler, function = causal_lm.sampler, causal_lm.make_generate_function()
    generator.generate(prompts[:1], NEW)
    assert causal_lm.sampler is sampler
    assert causal_lm.generate_function is function


def test_caches_are_few(causal_lm, monkeypatch):
    shapes = set()

    def make_generate_function():
        def fake(inputs, stop_token_ids):
            shapes.add(tuple(inputs["token_ids"].shape))
            return inputs

        return fake

    monkeypatch.setattr(
        causal_lm, "make_generate_function", make_generate_function
    )
    prompts = tiny_models.random_sequences([3, 20, ROOM - NEW, ROOM, 90])
    make_generator(causal_lm, max_length=100).generate(prompts, NEW)
    assert shapes == {(2, ROOM), (2, 100)}


def test_samplers():
    samplers = keras_hub.samplers
    assert type(make_sampler()) is samplers.GreedySampler
    assert type(make_sampler(1.0)) is samplers.RandomSampler
    top_k = make_sampler(0.5, top_k=3, seed=4)
    assert (top_k.k, top_k.temperature, top_k.seed) == (3, 0.5, 4)
    top_p = make_sampler(0.5, top_k=3, top_p=0.9)
    assert (top_p.p, top_p.k, top_p.temperature) == (0.9, 3, 0.5)
    with pytest.raises(ValueError, match="temperature=0"):
        make_sampler(0)
