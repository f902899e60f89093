"""What a model knows while it generates, and its attention layers do not.

KerasHub right-pads prompts to the length of the cache, runs over all of it,
and hands most families no padding mask. So the mask is published for the time
of `generate_step`, as are the permutations that decoding steps look up.

Letters: `B` batch, `T` new tokens, `S` rows of the cache, `m` neighbors.
"""

import contextlib
import threading

from keras import ops

from keras_sa.hub import _patching
from keras_sa.ops import patterns
from keras_sa.patterns import permutation as permutations


class Generation(threading.local):
    """Of the generation that runs in this thread, if one does.

    Attributes:
        padding_mask: boolean `[B, S]`: the tokens of the prompts.
        orders: for each `PermutationSeed`, the permutation `[S]` and its
            inverse.
    """

    padding_mask = None
    orders = {}

    @contextlib.contextmanager
    def running(self, padding_mask, orders):
        before = self.padding_mask, self.orders
        self.padding_mask, self.orders = padding_mask, orders
        try:
            yield
        finally:
            self.padding_mask, self.orders = before

    def prompt_mask(self, length):
        """Boolean `[B, length]` while a prompt of this length is read."""
        mask = self.padding_mask
        if mask is None or mask.shape[1] != length:
            return None
        return mask

    def order(self, seed, length):
        """The permutation over a cache and its inverse, int32 `[length]`."""
        known = self.orders.get(seed)
        if known is not None and known[0].shape[0] == length:
            return known
        return draw_order(seed.read(), length)


def draw_order(seed, length):
    """A permutation and its inverse, int32 `[length]`."""
    order = permutations.sample_permutation(length, seed)
    return order, permutations.invert_permutation(order)


def generating(causal_lm, generation, seeds):
    """`{name: function}`: the model's `generate_step`, within `generation`.

    Args:
        causal_lm: a model, which may be none that generates.
        generation: the `Generation` of its swap.
        seeds: the `PermutationSeed`s of the layers that decode in a window of
            a random order: their orders are drawn once, before the loop over
            steps.
    """

    def scope(inputs):
        length = inputs["token_ids"].shape[1]
        orders = {seed: draw_order(seed.read(), length) for seed in seeds}
        padding_mask = ops.cast(inputs["padding_mask"], "bool")
        return generation.running(padding_mask, orders)

    return _patching.generate_step_within(causal_lm, scope)


def local_neighbors(positions, length, window_size):
    """int32 `[T, m]`: what each new token sees; -1 where there is none."""
    return patterns.sliding_window_neighbors(
        length, min(window_size, length), causal=True, positions=positions
    )


def stochastic_neighbors(
    positions, order, window_size, neighborhood, exclude_local=None
):
    """int32 `[T, m]`: what each new token sees; -1 where there is none.

    Args:
        positions: int32 `[T]`.
        order: the permutation over the cache and its inverse, int32 `[S]`.
    """
    permutation, slot_of = order
    return patterns.stochastic_neighbors(
        permutation,
        window_size,
        neighborhood,
        causal=True,
        exclude_local=exclude_local,
        positions=positions,
        slot_of=slot_of,
    )
