"""Steps of `decode="pattern"`, and what `generate` does with swapped models."""

import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa import hub
from keras_sa.hub.seeds import layer_seeds
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing
from tests.hub import models

LENGTH = 12
PROMPT_LENGTH = 7
SEED = 3
GATED = {
    "gates": Stochastic(5) + SlidingWindow(3),
    "three_gates": (Stochastic(4) | GlobalKeys(first=1))
    + SlidingWindow(3)
    + SlidingWindow(2, dilation=3),
    "gate_of_a_window": GatedSum(SlidingWindow(3)),
}
PATTERNS = {
    "window": SlidingWindow(3),
    "dilated": SlidingWindow(3, dilation=2),
    "stochastic": Stochastic(5),
    "block_per_head": Stochastic(
        4, neighborhood="block", permutation_per="head"
    ),
    "union": Stochastic(5) | SlidingWindow(3) | GlobalKeys(first=2),
    "union_per_head": Stochastic(4, permutation_per="head") | Stochastic(3),
}
# What new tokens attend to as the whole cache only.
IN_FULL = {
    "block_routed": BlockRouted(3, 2),
    "question": SlidingWindow(3) | GlobalQueries(last=2) | GlobalKeys(first=1),
}
EACH = ("block_per_head", "union_per_head", "three_gates")
IN_STEPS = [("gpt_oss", "three_gates"), ("bloom", "union_per_head")]
PROMPTS = [("qwen3", "question"), ("gemma2", "union")]
if not testing.IS_COMPILED:
    EACH = tuple({**PATTERNS, **GATED})
    IN_STEPS += [("gpt_neo_x", "three_gates"), ("bloom", "three_gates")]
    PROMPTS += [("qwen3", "block_routed"), ("qwen3", "block_per_head")]
IN_STEPS += [("qwen3", pattern) for pattern in EACH]


def swap(model, pattern, **options):
    pattern = {**PATTERNS, **GATED, **IN_FULL}[pattern]
    return hub.swap_attention(
        model, pattern, **{"layers": "all", "seed": SEED, **options}
    )


def generate(model, lengths, max_length=LENGTH, **options):
    prompts = models.prompts(lengths, max_length)
    options.setdefault("stop_token_ids", None)
    return model.generate(prompts, **options)["token_ids"]


def stepwise_logits(model, token_ids, steps):
    """Of the prompt with its cache, then of steps of these lengths."""
    prompt_length = token_ids.shape[1] - sum(steps)

    def compute(token_ids):
        prompt = ops.concatenate(
            [
                token_ids[:, :prompt_length],
                ops.zeros_like(token_ids[:, prompt_length:]),
            ],
            axis=1,
        )
        hidden_states, cache = model._build_cache(prompt)
        parts = [hidden_states[:, :prompt_length]]
        start = prompt_length
        for step in steps:
            _, hidden_states, cache = model.call_with_cache(
                token_ids[:, start : start + step], cache, start
            )
            parts.append(hidden_states)
            start += step
        return model.backbone.token_embedding(
            ops.concatenate(parts, axis=1), reverse=True
        )

    y = backend.compile(compute)(ops.convert_to_tensor(token_ids))
    return ops.convert_to_numpy(y)


@pytest.mark.parametrize("name, pattern", IN_STEPS)
def test_steps_equal_the_forward_pass(name, pattern):
    """Logits of a prompt and of steps, against the whole sequence at once;
    several tokens in a step, and one by one."""
    model = models.build(name)
    token_ids = models.prompts([LENGTH, LENGTH], LENGTH)["token_ids"]
    everything = {
        "token_ids": token_ids,
        "padding_mask": np.ones_like(token_ids, bool),
    }
    with swap(model, pattern, decode="pattern"):
        expected = models.logits(model, everything)
        received = stepwise_logits(model, token_ids, [1, 1, 3])
    scale = np.abs(expected).max()
    assert np.abs(received - expected).max() < 1e-5 * scale


@pytest.mark.parametrize("pattern", EACH)
def test_a_step_attends_to_its_pattern_only(pattern):
    """What is in other rows of the cache makes no difference."""
    model = models.build("llama")
    attention = model.backbone.transformer_layers[0]._self_attention_layer
    rng = np.random.default_rng(0)
    last = LENGTH - 1
    # One example as it is, and one for each row that is changed in it.
    cache = np.repeat(rng.normal(size=(1, 2, LENGTH, 2, 4)), LENGTH, axis=0)
    for row in range(last):
        cache[row + 1, :, row] += 1.0
    x = np.repeat(rng.normal(size=(1, 1, 16)), LENGTH, axis=0)

    def step(x, cache):
        mask = ops.ones((LENGTH, 1, LENGTH), "bool")
        return attention(
            x, attention_mask=mask, cache=cache, cache_update_index=last
        )[0]

    tensors = [ops.convert_to_tensor(t, "float32") for t in (x, cache)]
    with swap(model, pattern, decode="pattern"):
        outputs = ops.convert_to_numpy(backend.compile(step)(*tensors))
    difference = np.abs(outputs[1:] - outputs[0]).max(axis=(1, 2))
    changed = np.flatnonzero(difference > 1e-4)
    bound = {**PATTERNS, **GATED}[pattern].bind(
        is_causal=True, seed=layer_seeds(SEED, 2)[0], num_key_value_heads=2
    )
    neighbors = bound.neighbors(LENGTH, ops.convert_to_tensor([last], "int32"))
    expected = set(np.ravel(ops.convert_to_numpy(neighbors))) - {-1, last}
    assert set(changed) == expected
    assert 0 < len(expected) < last


@pytest.mark.parametrize("name, pattern", PROMPTS)
def test_a_prompt_alone_in_a_batch_and_with_more_room(name, pattern):
    model = models.build(name)
    with swap(model, pattern):
        together = generate(model, [PROMPT_LENGTH] * 3)
        alone = generate(model, [PROMPT_LENGTH])
        roomy = generate(model, [PROMPT_LENGTH] * 2, LENGTH + 9)
    np.testing.assert_array_equal(alone, together[:1])
    np.testing.assert_array_equal(roomy[:, :LENGTH], together[:2])


def test_ragged_rows():
    """Decoding begins at the end of the shortest row. What the longer rows
    still have of their prompts is read again, token by token: by full
    attention, or by the pattern, which changes nothing."""
    model = models.build("llama")
    lengths = [4, PROMPT_LENGTH]
    long_row = models.prompts(lengths, LENGTH)
    long_row = {k: v[1:] for k, v in long_row.items()}

    def both():
        ragged = generate(model, lengths)
        short = generate(model, lengths[:1])
        long = model.generate(dict(long_row), stop_token_ids=None)["token_ids"]
        return ragged, short, long

    with swap(model, "stochastic"):
        ragged, short, long = both()
        np.testing.assert_array_equal(ragged[:1], short)
    with swap(model, "stochastic", decode="pattern"):
        ragged, short, long = both()
        np.testing.assert_array_equal(ragged[:1], short)
        np.testing.assert_array_equal(ragged[1:], long)


def test_the_tail_of_a_ragged_row_is_read_by_full_attention():
    """With `decode="full"`: the cache holds other keys then."""
    model = models.build("llama")
    token_ids = models.prompts([LENGTH], LENGTH)["token_ids"]
    steps = [1, 1, 1]
    with swap(model, "window"):
        again = stepwise_logits(model, token_ids, steps)
        once = stepwise_logits(model, token_ids, [0])
    before = LENGTH - sum(steps)
    np.testing.assert_allclose(again[:, :before], once[:, :before], atol=1e-5)
    assert np.abs(again[:, before:] - once[:, before:]).max() > 1e-3


def samplers():
    return {
        "top_k": keras_hub.samplers.TopKSampler(5, seed=1),
        "top_p": keras_hub.samplers.TopPSampler(0.9, seed=1),
        "beam": keras_hub.samplers.BeamSampler(2),
        "contrastive": keras_hub.samplers.ContrastiveSampler(k=2, alpha=0.2),
    }


@pytest.mark.parametrize("sampler", samplers())
def test_samplers(sampler):
    """Beams repeat the batch between the prompt and the steps."""
    if sampler.startswith("top"):  # they do not repeat the batch
        models.skip_where_compiled("all samplers")
    model = models.build("llama")

    def tokens(**options):
        model.compile(sampler=samplers()[sampler], jit_compile=False)
        return generate(model, [PROMPT_LENGTH] * 2)

    expected = tokens()
    for decode in ("full", "pattern"):
        covering = Stochastic(2 * LENGTH, permutation_per="head")
        with hub.swap_attention(model, covering, decode=decode):
            np.testing.assert_array_equal(tokens(), expected)


def test_stop_tokens_end_a_row():
    model = models.build("llama")
    with swap(model, "stochastic"):
        tokens = generate(model, [PROMPT_LENGTH])
        stop = int(tokens[0, PROMPT_LENGTH + 1])
        output = model.generate(
            models.prompts([PROMPT_LENGTH], LENGTH), stop_token_ids=(stop,)
        )
    first = PROMPT_LENGTH + int(np.argmax(tokens[0, PROMPT_LENGTH:] == stop))
    assert output["padding_mask"][0].sum() == first + 1


def text_model():
    """GPT-2 over letters, with strings in and out."""
    tokens = [*"abcdefghij", "Ġ", "ab", "<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary, merges=["a b"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(
        tokenizer, sequence_length=LENGTH
    )
    return models.build(
        "gpt2", preprocessor=preprocessor, vocabulary_size=len(tokens)
    )


def test_strings_in_and_out():
    model = text_model()
    texts = ["abcab", "gh ij"]
    expected = model.generate(texts, stop_token_ids=None)
    assert all(isinstance(text, str) for text in expected)
    with hub.swap_attention(model, Stochastic(2 * LENGTH)):
        assert model.generate(texts, stop_token_ids=None) == expected
        one = model.generate(texts[0], max_length=9, stop_token_ids=None)
        assert isinstance(one, str) and one.startswith(texts[0])
    with swap(model, "stochastic"):
        ours = model.generate(texts, stop_token_ids=None)
        assert [o[:5] for o in ours] == texts


def test_batches_that_stream():
    """A `tf.data.Dataset` of prompts, batch by batch."""
    tensorflow = pytest.importorskip("tensorflow")
    model = models.build("llama")
    prompts = models.prompts([PROMPT_LENGTH] * 4, LENGTH)
    batches = tensorflow.data.Dataset.from_tensor_slices(prompts).batch(2)
    with swap(model, "stochastic"):
        expected = model.generate(prompts, stop_token_ids=None)
        received = model.generate(batches, stop_token_ids=None)
    np.testing.assert_array_equal(received["token_ids"], expected["token_ids"])


def test_no_generation_is_seen_from_outside():
    """The mask of the prompts is gone with the call, also after an error."""
    model = models.build("llama")
    handle = swap(model, "stochastic")
    assert handle._generation.padding_mask is None
    generate(model, [PROMPT_LENGTH])
    assert handle._generation.padding_mask is None
    with pytest.raises(KeyError):  # there is no padding mask
        model.generate_step({"token_ids": ops.ones((1, 5), "int32")})
    assert handle._generation.padding_mask is None
    assert handle._generation.draws == {}


@pytest.mark.parametrize(
    "pattern, expected",
    [
        (SlidingWindow(3), "full"),
        (SlidingWindow(3) | Stochastic(3), "full"),
        (SlidingWindow(3) + Stochastic(3, permutation_per="head"), "pattern"),
        (SlidingWindow(3) + BlockRouted(3, 2), "full"),
    ],
    ids=repr,
)
def test_what_new_tokens_attend_to_by_default(pattern, expected):
    model = models.build("llama", num_layers=1)
    with hub.swap_attention(model, pattern) as handle:
        assert [x.plan.decode for x in handle._attentions] == [expected]


def test_the_last_tokens_of_ragged_prompts_attend_to_everything():
    """Right-padded rows: the last real tokens, not the last of the cache."""
    model = models.build("llama")
    lengths = (PROMPT_LENGTH, PROMPT_LENGTH - 3)
    prompts = models.prompts(lengths, LENGTH)

    def read(pattern):
        mask = ops.convert_to_tensor(prompts["padding_mask"])
        handle = hub.swap_attention(model, pattern, seed=SEED)
        with handle, handle._generation.running(mask, {}):
            return hidden_states()

    def hidden_states():
        build_cache = testing.compiled_on_jax(lambda x: model._build_cache(x))
        hidden, _ = build_cache(ops.convert_to_tensor(prompts["token_ids"]))
        return ops.convert_to_numpy(hidden)

    first_layer = {0: SlidingWindow(2) | GlobalKeys(first=1)}
    with_question = {0: first_layer[0] | GlobalQueries(last=2)}
    full = hidden_states()
    without, received = read(first_layer), read(with_question)
    for row, length in enumerate(lengths):
        first = slice(0, length - 2)
        # The second layer is full and mixes them: so only the first rows of
        # the first layer are the same, and they differ after it.
        assert np.abs(received - without)[row, length - 2 : length].max() > 1e-3
        np.testing.assert_allclose(
            received[row, first], without[row, first], atol=1e-5
        )
    assert np.abs(received - full).max() > 1e-3
