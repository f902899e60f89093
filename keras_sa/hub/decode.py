"""What a model knows while it generates, and its attention layers do not.

KerasHub right-pads prompts to the length of the cache, runs over all of it,
and hands most families no padding mask. So the mask is published for the time
of `generate_step`, as is what decoding steps look up: what the patterns drew.

Letters: `B` batch, `T` new tokens, `S` rows of the cache, `K` key/value heads,
`m` neighbors.
"""

import contextlib
import threading

from keras import ops

from keras_sa.hub import _patching
from keras_sa.patterns import lists


class Generation(threading.local):
    """Of the generation that runs in this thread, if one does.

    Attributes:
        padding_mask: boolean `[B, S]`: the tokens of the prompts.
        draws: for each `SwappedAttention` that decodes in its pattern, what
            that drew over the cache.
    """

    padding_mask = None
    draws = {}

    @contextlib.contextmanager
    def running(self, padding_mask, draws):
        before = self.padding_mask, self.draws
        self.padding_mask, self.draws = padding_mask, draws
        try:
            yield
        finally:
            self.padding_mask, self.draws = before

    def prompt_mask(self, length):
        """Boolean `[B, length]` while a prompt of this length is read."""
        mask = self.padding_mask
        if mask is None or mask.shape[1] != length:
            return None
        return mask

    def drawn(self, swapped, length):
        """What a pattern drew over a cache, or draws now."""
        mask = self.padding_mask
        if mask is not None and mask.shape[1] == length:
            known = self.draws.get(swapped)
            if known is not None:
                return known
        return swapped.draw(length)


def generating(causal_lm, generation, swapped_attentions):
    """`{name: function}`: the model's `generate_step`, within `generation`.

    Args:
        causal_lm: a model, which may be none that generates.
        generation: the `Generation` of its swap.
        swapped_attentions: those that decode in their patterns: what these
            draw is drawn once, before the loop over steps.
    """

    def scope(inputs):
        length = inputs["token_ids"].shape[1]
        padding_mask = ops.cast(inputs["padding_mask"], "bool")
        draws = {x: x.draw(length) for x in swapped_attentions}
        return generation.running(padding_mask, draws)

    return _patching.generate_step_within(causal_lm, scope)


def neighbors_of_terms(pattern, drawn, length, positions):
    """The rows of a cache that new tokens attend to, each once.

    Args:
        pattern: a `Pattern`.
        drawn: what it drew over the cache.
        length: `S`.
        positions: int32 `[T]`, of the new tokens.

    Returns:
        A list of int32 `[T, m]` or `[K, T, m]`, one for each softmax.
    """
    terms = [(pattern, drawn)]
    if "gates" in pattern.needs():
        terms = zip(pattern.terms, pattern.seeds(drawn))
    return [
        lists.distinct(
            lists.neighbors_of(
                term, length, is_causal=True, seed=seed, positions=positions
            )
        )
        for term, seed in terms
    ]
