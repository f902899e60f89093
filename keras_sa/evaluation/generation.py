"""Tokens that follow prompts, in batches.

Letters: `B` prompts of a batch, `n` tokens of a prompt, `T` of prompt and room.
"""

import collections
import contextlib

import keras_hub
import numpy as np
from keras import ops

# Few lengths to compile for, few tokens written in vain.
ROOM = 64


def generate_tokens(
    causal_lm,
    prompts,
    max_new_tokens,
    *,
    sampler,
    stop_token_ids=(),
    batch_size,
    max_length,
):
    """Continues prompts, each as if alone.

    Prompts of one batch are equally long: KerasHub begins to decode at the end
    of the shortest, and a swapped model reads the rest of the others in
    another way. Batches are filled up, and caches hold a multiple of 64 tokens
    (or `max_length`), for few compiled shapes.

    Args:
        causal_lm: a `keras_hub.models.CausalLM`. Its preprocessor is not used,
            and its own sampler is in place again afterwards.
        prompts: lists of tokens `[n]`, cut at their beginning if there is no
            room otherwise.
        max_new_tokens: how many to write, at most.
        sampler: a sampler of KerasHub.
        stop_token_ids: tokens that end a text; they are not returned.
        batch_size: `B`.
        max_length: tokens of prompt and text together, at most.

    Returns:
        For each prompt a list of up to `max_new_tokens` tokens.

    Raises:
        ValueError: if there is no room for a prompt.
    """
    if max_new_tokens >= max_length:
        raise ValueError(
            "The number of new tokens is expected to be less than "
            f"`max_length`, {max_length}. Received: {max_new_tokens} new tokens"
        )
    prompts = [prompt[max_new_tokens - max_length :] for prompt in prompts]
    results = [None] * len(prompts)
    with _generate_function(causal_lm, sampler) as generate:
        for members in _batches(prompts, batch_size):
            tokens = np.array([prompts[index] for index in members], "int32")
            length = _cache_length(tokens.shape[1] + max_new_tokens, max_length)
            inputs = _inputs(tokens, batch_size, length)
            outputs = generate(inputs, stop_token_ids=stop_token_ids or None)
            rows = ops.convert_to_numpy(outputs["token_ids"])
            for index, row in zip(members, rows):
                first = tokens.shape[1]
                written = row[first : first + max_new_tokens].tolist()
                results[index] = _until_stop(written, stop_token_ids)
    return results


def make_sampler(temperature=None, top_k=None, top_p=None, seed=0):
    """A sampler of KerasHub, greedy without a temperature.

    Raises:
        ValueError: for a temperature that is not positive.
    """
    samplers = keras_hub.samplers
    if temperature is None:
        return samplers.GreedySampler()
    if not temperature > 0:
        raise ValueError(
            "`temperature` is expected to be positive where tokens are drawn. "
            f"Received: temperature={temperature}"
        )
    options = {"temperature": temperature, "seed": seed}
    if top_p is not None:
        return samplers.TopPSampler(p=top_p, k=top_k, **options)
    if top_k is not None:
        return samplers.TopKSampler(k=top_k, **options)
    return samplers.RandomSampler(**options)


@contextlib.contextmanager
def _generate_function(causal_lm, sampler):
    """The model's compiled generation of tokens, with another sampler.

    `compile` would take the model's optimizer and loss away, and `generate`
    would hand tokens to the preprocessor.
    """
    names = ("sampler", "generate_function")
    before = {name: getattr(causal_lm, name, None) for name in names}
    causal_lm.sampler, causal_lm.generate_function = sampler, None
    try:
        yield causal_lm.make_generate_function()
    finally:
        for name, value in before.items():
            setattr(causal_lm, name, value)


def _batches(prompts, batch_size):
    """Indices of prompts of one length, the longest first."""
    members = collections.defaultdict(list)
    for index, prompt in enumerate(prompts):
        members[len(prompt)].append(index)
    for length in sorted(members, reverse=True):
        for first in range(0, len(members[length]), batch_size):
            yield members[length][first : first + batch_size]


def _cache_length(needed, max_length):
    return min(-(-needed // ROOM) * ROOM, max_length)


def _inputs(tokens, batch_size, length):
    """Prompts `[rows, n]` as the model takes them, `[B, T]`."""
    num_rows, num_old = tokens.shape
    token_ids = np.zeros((batch_size, length), "int32")
    token_ids[:num_rows, :num_old] = tokens
    token_ids[num_rows:, :num_old] = tokens[0]
    # Boolean, since models of Gemma invert it by `~`.
    padding_mask = np.zeros((batch_size, length), bool)
    padding_mask[:, :num_old] = True
    return {
        "token_ids": ops.convert_to_tensor(token_ids),
        "padding_mask": ops.convert_to_tensor(padding_mask),
    }


def _until_stop(tokens, stop_token_ids):
    ends = [tokens.index(stop) for stop in stop_token_ids if stop in tokens]
    return tokens[: min(ends, default=len(tokens))]
