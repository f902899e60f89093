"""Tokens that follow prompts, in batches.

Letters: `B` prompts of a batch, `n` tokens of a prompt, `T` of prompt and room.
"""

import collections
import contextlib

import keras_hub
import numpy as np
from keras import ops

from keras_sa.evaluation import scoring

# Few lengths to compile for, few tokens written in vain.
ROOM = 64


class TokenGenerator:
    """Continues prompts of tokens under a KerasHub model, each as if alone.

    Prompts of one batch are equally long: KerasHub begins to decode at the end
    of the shortest, and a swapped model reads the rest of the others in
    another way. Batches are filled up, and caches hold a multiple of 64 tokens
    (or `max_length`), for few compiled shapes. A swap of the model's attention
    is noticed.

    Args:
        causal_lm: a `keras_hub.models.CausalLM`. Its preprocessor is not used,
            and its own sampler stays.
        batch_size: `B`.
        max_length: tokens of a prompt and what follows it, at most.
        stop_token_ids: tokens that end a text; they are not returned.
        seed: of tokens that are drawn.
    """

    def __init__(
        self, causal_lm, *, batch_size, max_length, stop_token_ids=(), seed=0
    ):
        self.causal_lm = causal_lm
        self.batch_size = batch_size
        self.max_length = max_length
        self.stop_token_ids = tuple(stop_token_ids)
        self.seed = seed
        self._functions = {}
        self._compiled_for = None

    def generate(self, prompts, max_new_tokens, **sampling):
        """Continues prompts.

        Args:
            prompts: lists of tokens `[n]`, cut at their beginning if there is
                no room otherwise.
            max_new_tokens: how many to write, at most.
            **sampling: `temperature`, `top_k` and `top_p`; without a
                temperature each token is the most probable one.

        Returns:
            For each prompt a list of up to `max_new_tokens` tokens.

        Raises:
            ValueError: if there is no room for a prompt.
        """
        room = self.max_length - max_new_tokens
        if room < 1:
            raise ValueError(
                "New tokens are expected to be fewer than `max_length`, "
                f"{self.max_length}. Received: {max_new_tokens} new tokens"
            )
        prompts = [prompt[-room:] for prompt in prompts]
        results = [None] * len(prompts)
        with self._sampling(**sampling) as generate:
            for members in _batches(prompts, self.batch_size):
                of_batch = [prompts[index] for index in members]
                written = self._continue(generate, of_batch, max_new_tokens)
                for index, tokens in zip(members, written):
                    results[index] = tokens
        return results

    def _continue(self, generate, prompts, max_new_tokens):
        """Lists of new tokens after equally long prompts."""
        first = len(prompts[0])
        last = first + max_new_tokens
        length = min(-(-last // ROOM) * ROOM, self.max_length)
        outputs = generate(
            self._inputs(np.array(prompts, "int32"), length),
            stop_token_ids=self.stop_token_ids or None,
        )
        rows = ops.convert_to_numpy(outputs["token_ids"])
        for row in rows[: len(prompts), first:last].tolist():
            ends = [row.index(x) for x in self.stop_token_ids if x in row]
            yield row[: min(ends, default=None)]

    def _inputs(self, prompts, length):
        """Prompts `[rows, n]` as the model takes them, `[B, T]`."""
        num_rows, num_old = prompts.shape
        shape = (self.batch_size, length)
        # KerasHub stops at a stop token in the room, written or not.
        fillers = {*range(len(self.stop_token_ids) + 1)}
        token_ids = np.full(shape, min(fillers - {*self.stop_token_ids}))
        token_ids[:, :num_old] = prompts[0]
        token_ids[:num_rows, :num_old] = prompts
        # Boolean, since models of Gemma invert it by `~`.
        padding_mask = np.broadcast_to(np.arange(length) < num_old, shape)
        return {
            "token_ids": ops.convert_to_tensor(token_ids, "int32"),
            "padding_mask": ops.convert_to_tensor(padding_mask, "bool"),
        }

    @contextlib.contextmanager
    def _sampling(self, **sampling):
        """The model's compiled generation, under a sampler for a while.

        `compile` would take the model's optimizer and loss away, and
        `generate` would hand tokens to the preprocessor.
        """
        state = scoring.state_of(self.causal_lm)
        if state != self._compiled_for:
            self._functions, self._compiled_for = {}, state
        key = tuple(sorted(sampling.items()))
        if key not in self._functions:
            sampler = make_sampler(**sampling, seed=self.seed)
            self._functions[key] = sampler, None
        before = {
            name: getattr(self.causal_lm, name, None)
            for name in ("sampler", "generate_function")
        }
        sampler, function = self._functions[key]
        self.causal_lm.sampler = sampler
        self.causal_lm.generate_function = function
        try:
            function = self.causal_lm.make_generate_function()
            self._functions[key] = sampler, function
            yield function
        finally:
            for name, value in before.items():
                setattr(self.causal_lm, name, value)


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


def _batches(prompts, batch_size):
    """Indices of prompts of one length, the longest first."""
    members = collections.defaultdict(list)
    for index, prompt in enumerate(prompts):
        members[len(prompt)].append(index)
    for length in sorted(members, reverse=True):
        for first in range(0, len(members[length]), batch_size):
            yield members[length][first : first + batch_size]
