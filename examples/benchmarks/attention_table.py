"""The attentions of the benchmark: one entry says all there is about each.

How to make it, which keys each token attends to, which arithmetic it cannot
avoid, and what it is compared with. `attention_peers.py` has the entries of
others.

Letters: `B` batch, `n` tokens, `H` heads, `D` head dim, `R` rows of the mask,
`w` window.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

import keras_sa
from keras_sa.ops.windowed import api
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

FULL, SLIDING = "full", "sliding window"
ROUTED, SLIDING_LAYER = "block-routed, top 3", "SlidingWindowAttention"
TOP_K = 3
SEED = 0


@dataclasses.dataclass(frozen=True)
class Problem:
    """The shapes of one comparison, and its window."""

    batch: int
    length: int
    heads: int
    head_dim: int
    window: int

    @property
    def features(self):
        return self.heads * self.head_dim


@dataclasses.dataclass(frozen=True)
class Attention:
    """One attention.

    Attributes:
        name: as printed.
        make: function of the problem that returns what is timed: a function
            of query, key and value `[B, n, H, D]`, or a `LayerCall`.
        mask: function of problem, rows, query and key; boolean numpy that
            broadcasts to `[B, H, R, n]`: what those rows attend to.
        computed_keys: function of the problem: keys per token that cannot
            be left out of the products. Default: those that it attends to.
        reference: whom it is compared with, beside full attention.
        is_layer: a layer with its projections, not the attention core.
        is_peer: somebody else's.
        heads_first: it takes and returns `[B, H, n, D]`; inputs are brought
            into that order before the clock starts.
        has_backward: whether there are gradients.
        package: what must be installed for it.
        why_not: function of the problem: why it cannot take it, or `None`.
        may_refuse: it runs by name, and can say that it does not take this.
    """

    name: str
    make: Callable
    mask: Callable
    computed_keys: Callable | None = None
    reference: str | None = None
    is_layer: bool = False
    is_peer: bool = False
    heads_first: bool = False
    has_backward: bool = True
    package: str | None = None
    why_not: Callable = lambda problem: None
    may_refuse: bool = False


class LayerCall:
    """A built attention layer as a function of one tensor `[B, n, H * D]`."""

    def __init__(self, layer, problem):
        self.layer = layer
        shape = (problem.batch, problem.length, problem.features)
        layer.build(shape, shape)

    def __call__(self, x):
        return self.layer(x, x, use_causal_mask=True)

    def projected(self, x):
        """Query, key and value `[B, n, H, D]`."""
        layer = self.layer
        projections = (layer.query_dense, layer.key_dense, layer.value_dense)
        return [projection(x) for projection in projections]

    def output(self, heads):
        return self.layer.output_dense(heads)


# What rows attend to.


def columns(problem):
    return np.arange(problem.length)[None, :]


def causal_mask(problem, rows, query=None, key=None):
    return columns(problem) <= rows[:, None]


def _mask_of_neighbors(neighbors, length):
    """Boolean `[..., R, n]` of lists of neighbors `[..., R, m]`, -1 for
    nobody."""
    neighbors = ops.convert_to_numpy(neighbors)
    mask = np.zeros((*neighbors.shape[:-1], length + 1), bool)
    np.put_along_axis(mask, neighbors, True, axis=-1)
    return mask[..., :length]  # -1 has put its marks in the column too many


def mask_of(pattern, is_causal=True):
    """The mask of a pattern whose window is that of the problem.

    Args:
        pattern: function of a window size.
        is_causal: whether a token attends to no later token.
    """

    def mask(problem, rows, query=None, key=None):
        seed = pattern(problem.window).draw(
            problem.length, seed=SEED, num_key_value_heads=problem.heads
        )
        neighbors = pattern(problem.window).neighbors(
            problem.length,
            is_causal=is_causal,
            seed=seed,
            positions=ops.convert_to_tensor(rows),
        )
        return _mask_of_neighbors(neighbors, problem.length)

    return mask


sliding_mask = mask_of(SlidingWindow)
Blocks = functools.partial(Stochastic, neighborhood="block")
PerHead = functools.partial(Stochastic, permutation_per="head")


def routed_mask(problem, rows, query, key):
    pattern = BlockRouted(problem.window, TOP_K)
    routes = keras_sa.ops.route_to_blocks(
        query, key, block_size=problem.window, top_k=TOP_K, is_causal=True
    )  # [B, n, H, r]
    masks = [
        _mask_of_neighbors(
            pattern.neighbors(
                problem.length,
                is_causal=True,
                positions=ops.convert_to_tensor(rows),
                routes=of_text,
            ),
            problem.length,
        )
        for of_text in ops.unstack(routes)
    ]
    return np.stack(masks)


# How they are made.


def make_full(problem):
    return functools.partial(ops.dot_product_attention, is_causal=True)


def make_sliding(problem, implementation=None):
    return functools.partial(
        keras_sa.ops.sliding_window_attention,
        window_size=problem.window,
        is_causal=True,
        implementation=implementation,
    )


def permutation_of(problem, num_key_value_heads=None):
    return keras_sa.ops.sample_permutation(
        problem.length, seed=SEED, num_key_value_heads=num_key_value_heads
    )


def make_stochastic(problem, neighborhood, implementation=None):
    permutation = permutation_of(problem)

    def attend(query, key, value):
        return keras_sa.ops.stochastic_attention(
            query,
            key,
            value,
            permutation,
            window_size=problem.window,
            neighborhood=neighborhood,
            is_causal=True,
            implementation=implementation,
        )

    return attend


def make_local(problem):
    return functools.partial(
        keras_sa.ops.sliding_window_attention, window_size=problem.window
    )


def make_permuted(problem, per_head):
    permutation = permutation_of(problem, problem.heads if per_head else None)

    def attend(query, key, value):
        return keras_sa.ops.stochastic_attention(
            query, key, value, permutation, window_size=problem.window
        )

    return attend


def make_routed(problem):
    return functools.partial(
        keras_sa.ops.block_routed_attention,
        block_size=problem.window,
        top_k=TOP_K,
        is_causal=True,
    )


def make_sliding_layer(problem):
    layer = keras_sa.layers.SlidingWindowAttention(
        problem.heads, problem.head_dim, window_size=problem.window, seed=SEED
    )
    return LayerCall(layer, problem)


# A causal mask hides half of a window of a permutation wherever it falls:
# the products must be made for all of the window.


def slots_in(pattern):
    """The keys of a pattern whose window is that of the problem."""
    return lambda problem: pattern(problem.window).keys_per_token(
        problem.length
    )


def windowed_attentions(implementation=None):
    """What runs through `keras_sa.ops.windowed`."""
    suffix = f" [{implementation}]" if implementation else ""
    return (
        Attention(
            SLIDING + suffix,
            functools.partial(make_sliding, implementation=implementation),
            sliding_mask,
        ),
        Attention(
            "stochastic, window" + suffix,
            functools.partial(
                make_stochastic,
                neighborhood="window",
                implementation=implementation,
            ),
            mask_of(Stochastic),
            slots_in(Stochastic),
        ),
        Attention(
            "stochastic, block" + suffix,
            functools.partial(
                make_stochastic,
                neighborhood="block",
                implementation=implementation,
            ),
            mask_of(Blocks),
            slots_in(Blocks),
        ),
    )


FULL_ATTENTION = Attention(FULL, make_full, causal_mask)

ATTENTIONS = (
    FULL_ATTENTION,
    *windowed_attentions(),
    Attention(ROUTED, make_routed, routed_mask),
    Attention(SLIDING_LAYER, make_sliding_layer, sliding_mask, is_layer=True),
)


def permuted_attentions():
    """The same bidirectional windows, with and without a permutation."""
    in_order = "window, in order"
    table = [
        Attention(
            in_order,
            make_local,
            mask_of(SlidingWindow, is_causal=False),
        ),
    ]
    for name, pattern in (
        ("window, one permutation", Stochastic),
        ("window, a permutation per head", PerHead),
    ):
        table.append(
            Attention(
                name,
                functools.partial(make_permuted, per_head=pattern is PerHead),
                mask_of(pattern, is_causal=False),
                reference=in_order,
            )
        )
    return tuple(table)


def named_implementations(names):
    """Windowed attentions by each implementation, against the last one."""
    table = [FULL_ATTENTION]
    for name in names:
        for ours, last in zip(
            windowed_attentions(name), windowed_attentions(names[-1])
        ):
            reference = None if name == names[-1] else last.name
            table.append(
                dataclasses.replace(
                    ours,
                    reference=reference,
                    may_refuse=True,
                    has_backward=name != "flex",  # it has none on a CPU
                    why_not=functools.partial(_unknown, implementation=name),
                )
            )
    return tuple(table)


def _unknown(problem, implementation):
    known = api.IMPLEMENTATIONS[keras.config.backend()]
    if implementation not in known:
        return f"{keras.config.backend()} has only {', '.join(known)}"
    return None
