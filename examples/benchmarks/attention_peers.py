"""The attentions of others, on the same shapes, as entries of the table.

Each says in its mask what it attends to, and is checked for that. Where a
library wants hidden states and has projections of its own, the projections are
replaced by query, key and value as given: attention core against core.

Letters: as in `attention_table.py`; `b` tokens in a block.
"""

import functools
import itertools

import keras
import numpy as np
from keras import ops

from examples.benchmarks.attention_table import ROUTED
from examples.benchmarks.attention_table import SEED
from examples.benchmarks.attention_table import SLIDING
from examples.benchmarks.attention_table import SLIDING_LAYER
from examples.benchmarks.attention_table import TOP_K
from examples.benchmarks.attention_table import Attention
from examples.benchmarks.attention_table import LayerCall
from examples.benchmarks.attention_table import columns
from examples.benchmarks.attention_table import routed_mask
from examples.benchmarks.attention_table import sliding_mask
from keras_sa.ops import route_to_blocks
from keras_sa.patterns import BlockRouted

# Every backend.


def make_banded_layer(problem):
    layer = keras.layers.MultiHeadAttention(
        problem.heads,
        problem.head_dim,
        sliding_window=problem.window,
        seed=SEED,
    )
    return LayerCall(layer, problem)


def make_routed_by_mask(problem):
    """MoBA as a mask of all pairs, chosen by the queries at hand."""

    def attend(query, key, value):
        routes = route_to_blocks(
            query, key, block_size=problem.window, top_k=TOP_K, is_causal=True
        )
        mask = BlockRouted(problem.window, TOP_K).mask(
            problem.length, is_causal=True, routes=routes
        )
        return ops.dot_product_attention(query, key, value, mask=mask)

    return attend


# JAX.


def make_jax_window(problem):
    import jax

    return functools.partial(
        jax.nn.dot_product_attention,
        is_causal=True,
        local_window_size=(problem.window - 1, 0),
    )


# torch: SDPA, FlexAttention, local-attention.


def make_banded_sdpa(problem):
    import torch

    band = torch.ones(problem.length, problem.length, dtype=torch.bool)
    band = band.tril().triu(1 - problem.window)

    def attend(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=band
        )

    return attend


def make_flex(problem):
    import torch
    from torch.nn.attention import flex_attention

    def is_visible(batch, head, row, column):
        return (row >= column) & (row - column < problem.window)

    # Every problem compiles anew, and Dynamo keeps few compilations.
    torch.compiler.reset()
    block_mask = flex_attention.create_block_mask(
        is_visible, None, None, problem.length, problem.length, device="cpu"
    )
    compiled = torch.compile(flex_attention.flex_attention, dynamic=False)
    return functools.partial(compiled, block_mask=block_mask)


def make_local(problem, window_size, look_backward, exact):
    from local_attention import LocalAttention

    return LocalAttention(
        window_size=window_size,
        look_backward=look_backward,
        exact_windowsize=exact,
        causal=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )


def make_local_blocks(problem):
    return make_local(problem, problem.window, 1, exact=False)


def local_blocks_mask(problem, rows, query=None, key=None):
    """Its own block of w and the block before."""
    row, column, width = rows[:, None], columns(problem), problem.window
    return (column <= row) & (row // width - column // width <= 1)


def make_local_exact(problem):
    return make_local(problem, problem.window // 2, 2, exact=True)


def one_more_mask(problem, rows, query=None, key=None):
    """The token and w before it."""
    row, column = rows[:, None], columns(problem)
    return (column <= row) & (row - column <= problem.window // 2 * 2)


# torch: Hugging Face transformers.


def given_projection():
    """A module to put for a projection: returns a copy of what it is given.

    A copy, because Longformer scales its queries in place.
    """
    import torch

    class Given(torch.nn.Module):
        tensor = None

        def forward(self, hidden_states):
            return self.tensor.clone()

    return Given()


def with_given_projections(module, call):
    """`module` as a function of query, key and value `[B, n, H, D]`.

    Args:
        call: function of hidden states that returns `[B, n, H * D]`.
    """
    projections = [given_projection() for _ in range(3)]
    module.query, module.key, module.value = projections

    def attend(query, key, value):
        for projection, tensor in zip(projections, (query, key, value)):
            projection.tensor = tensor.flatten(2)
        return call(query.flatten(2)).unflatten(2, query.shape[2:])

    return attend


def make_longformer(problem):
    import torch
    from transformers import LongformerConfig
    from transformers.models.longformer import modeling_longformer

    config = LongformerConfig(
        hidden_size=problem.features,
        num_attention_heads=problem.heads,
        attention_window=[problem.window],
        attention_probs_dropout_prob=0.0,
    )

    module = modeling_longformer.LongformerSelfAttention(config, layer_id=0)
    nothing = torch.zeros(problem.batch, problem.length)
    no_token = nothing.bool()

    def call(hidden_states):
        return module(hidden_states, nothing, no_token, no_token, False)[0]

    attend = with_given_projections(module, call)
    for projection in (module.query, module.key, module.value):
        projection.register_forward_hook(_tokens_first)
    return attend


def _tokens_first(module, inputs, output):
    return output.transpose(0, 1)


def longformer_mask(problem, rows, query=None, key=None):
    """w // 2 on either side and itself; no token is global here."""
    return np.abs(rows[:, None] - columns(problem)) <= problem.window // 2


def why_not_longformer(problem):
    if problem.window % 2 or problem.length % problem.window:
        return "it wants an even window that divides the length"
    return None


RANDOM_BLOCKS = 3
# Of a row in the middle: the first, the last, three around it, random ones.
BLOCKS = 5 + RANDOM_BLOCKS


def why_not_big_bird(problem):
    block = problem.window // BLOCKS
    if problem.window % BLOCKS or problem.length % block:
        return f"it wants a window of {BLOCKS} blocks, and whole blocks"
    if problem.length // block < 2 * BLOCKS:
        return "the text is too short for random blocks"
    return None


@functools.cache
def random_blocks(problem):
    """int `[H, n / b - 2, random]`: for each block but the first and last.

    The library draws them anew at every call in training, which takes longer
    than the attention, and puts zeros for them in evaluation.
    """
    random = np.random.default_rng(SEED)
    count = problem.length * BLOCKS // problem.window

    def draw(block):
        seen = [0, block - 1, block, block + 1, count - 1]
        others = np.setdiff1d(np.arange(count), seen)
        return random.choice(others, RANDOM_BLOCKS, replace=False)

    return np.array(
        [
            [draw(block) for block in range(1, count - 1)]
            for _ in range(problem.heads)
        ]
    )


def make_big_bird(problem):
    import torch
    from transformers import BigBirdConfig
    from transformers.models.big_bird import modeling_big_bird

    config = BigBirdConfig(
        hidden_size=problem.features,
        num_attention_heads=problem.heads,
        block_size=problem.window // BLOCKS,
        num_random_blocks=RANDOM_BLOCKS,
        max_position_embeddings=problem.length,
    )

    class SelfAttention(modeling_big_bird.BigBirdBlockSparseAttention):
        def _bigbird_block_rand_mask_with_head(self, **arguments):
            return list(random_blocks(problem))

        def _bigbird_block_rand_mask(self, *arguments, **keywords):
            return random_blocks(problem)[next(heads)]

    # One of the two methods is asked once per head.
    heads = itertools.cycle(range(problem.heads))
    module = SelfAttention(config)
    blocked, band, rows, keys = (
        modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
            torch.ones(problem.batch, problem.length), config.block_size
        )
    )

    def call(hidden_states):
        return module(hidden_states, band, rows, keys, blocked, blocked)[0]

    return with_given_projections(module, call)


def big_bird_mask(problem, rows, query=None, key=None):
    """First and last block attend to all and all attend to them; the others
    attend to their neighbors and random blocks beside; `[1, H, R, n]`."""
    width = problem.window // BLOCKS
    count = problem.length // width
    block = np.arange(count)
    near = np.abs(block[:, None] - block) <= 1
    ends = (block == 0) | (block == count - 1)
    seen = np.tile(near | ends | ends[:, None], (problem.heads, 1, 1))
    np.put_along_axis(seen[:, 1:-1], random_blocks(problem), True, axis=-1)
    return np.repeat(seen[:, rows // width], width, axis=-1)[None]


_ANY = (
    Attention(
        "keras.layers.MultiHeadAttention(sliding_window=w)",
        make_banded_layer,
        sliding_mask,
        reference=SLIDING_LAYER,
        is_layer=True,
        is_peer=True,
    ),
    Attention(
        "MoBA by a dense mask",
        make_routed_by_mask,
        routed_mask,
        reference=ROUTED,
        is_peer=True,
    ),
)
_peer = functools.partial(Attention, reference=SLIDING, is_peer=True)
PEERS = {
    "jax": (
        *_ANY,
        _peer(
            "jax.nn.dot_product_attention(local_window_size)",
            make_jax_window,
            sliding_mask,
        ),
    ),
    "tensorflow": _ANY,
    "torch": (
        *_ANY,
        _peer(
            "torch SDPA, band as a mask",
            make_banded_sdpa,
            sliding_mask,
            heads_first=True,
        ),
        _peer(
            "torch FlexAttention, compiled",
            make_flex,
            sliding_mask,
            heads_first=True,
            has_backward=False,  # on a CPU
        ),
        _peer(
            "local-attention, blocks of w",
            make_local_blocks,
            local_blocks_mask,
            heads_first=True,
            package="local_attention",
        ),
        _peer(
            "local-attention, exact",
            make_local_exact,
            one_more_mask,
            heads_first=True,
            package="local_attention",
        ),
        _peer(
            "Longformer (transformers)",
            make_longformer,
            longformer_mask,
            package="transformers",
            why_not=why_not_longformer,
        ),
        _peer(
            "BigBird (transformers)",
            make_big_bird,
            big_bird_mask,
            package="transformers",
            why_not=why_not_big_bird,
        ),
    ),
}
