"""Steps of `decode="window"`, and what `generate` does with swapped models."""

import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa import hub
from tests.hub import models

LENGTH = 12
PROMPT_LENGTH = 7
SEED = 3
PATTERNS = {
    "sliding_window": {"mode": "sliding_window", "window_size": 3},
    "stochastic": {"mode": "stochastic", "window_size": 5},
    "stochastic_block": {
        "mode": "stochastic",
        "window_size": 4,
        "neighborhood": "block",
    },
    "small_world_gate": {
        "mode": "small_world",
        "window_size": 5,
        "local_window_size": 3,
        "gate_bias": (-1.0, 0.5),
    },
    "small_world_softmax": {
        "mode": "small_world",
        "window_size": 5,
        "local_window_size": 3,
        "merge": "softmax",
    },
    "two_windows_gate": {
        "mode": "small_world",
        "window_size": 5,
        "order": "identity",
        "local_window_size": 2,
        "gate_bias": (-1.0, 0.5),
    },
    "sliding_window_gate": {
        "mode": "sliding_window",
        "window_size": 3,
        "merge": "gate",
    },
}
TRAINING_FREE = {
    **{k: v for k, v in PATTERNS.items() if "gate" not in k},
    "block_routed": {"mode": "block_routed", "block_size": 3, "top_k": 2},
}
each_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def swap(model, pattern, **options):
    options = {"layers": "all", "seed": SEED, **options}
    options.update({**PATTERNS, **TRAINING_FREE}[pattern])
    if options["mode"] not in ("stochastic", "small_world"):
        options.pop("gate_bias", None)
    return hub.swap_attention(model, **options)


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


@each_pattern
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "gpt_neo_x", "bloom"])
def test_steps_equal_the_forward_pass(name, pattern):
    """Logits of a prompt and of steps, against the whole sequence at once;
    several tokens in a step, and one by one."""
    if name != "qwen3" and pattern != "small_world_gate":
        models.skip_where_compiled("all pairs")
    model = models.build(name)
    token_ids = models.prompts([LENGTH, LENGTH], LENGTH)["token_ids"]
    everything = {
        "token_ids": token_ids,
        "padding_mask": np.ones_like(token_ids, bool),
    }
    with swap(model, pattern, decode="window"):
        expected = models.logits(model, everything)
        received = stepwise_logits(model, token_ids, [1, 1, 3])
    scale = np.abs(expected).max()
    assert np.abs(received - expected).max() < 1e-5 * scale


@each_pattern
def test_a_step_hears_its_window_only(pattern):
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
    with swap(model, pattern, decode="window"):
        outputs = ops.convert_to_numpy(backend.compile(step)(*tensors))
    difference = np.abs(outputs[1:] - outputs[0]).max(axis=(1, 2))
    heard = 1 + np.count_nonzero(difference > 1e-4)  # and itself
    options = PATTERNS[pattern]
    most = options["window_size"] + options.get("local_window_size", 0)
    assert 1 < heard <= most < LENGTH


@pytest.mark.parametrize("pattern", TRAINING_FREE)
@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_prompt_alone_in_a_batch_and_with_more_room(name, pattern):
    if name == "gemma2":
        models.skip_where_compiled("a second family")
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
    attention, or in the window, which changes nothing."""
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
    with swap(model, "stochastic", decode="window"):
        ragged, short, long = both()
        np.testing.assert_array_equal(ragged[:1], short)
        np.testing.assert_array_equal(ragged[1:], long)


def test_the_tail_of_a_ragged_row_is_read_by_full_attention():
    """With `decode="full"`: the cache holds other keys then."""
    model = models.build("llama")
    token_ids = models.prompts([LENGTH], LENGTH)["token_ids"]
    steps = [1, 1, 1]
    with swap(model, "sliding_window"):
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
    for decode in ("full", "window"):
        with hub.swap_attention(
            model, "stochastic", window_size=2 * LENGTH, decode=decode
        ):
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
    with hub.swap_attention(model, "stochastic", window_size=2 * LENGTH):
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
    assert handle._generation.orders == {}
