"""The loop, as a program of JAX.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `G` query
heads per key/value head, `D` head dim, `E` value head dim, `F` features, `m`
slots, `c` slots in a chunk, `g` chunks in a step, `r` examples in a step, `s`
steps, `u` slots that a step handles and reaches, `S` keys of a chunk.
"""

import dataclasses
import functools

import jax
from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.ops.windowed import chunked
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import recomputation

# A step costs as much as this many chunks more.
_STEP_COST = 0.25
# What windows reach, with what stands for nothing.
_FILLERS = {"key": 0, "value": 0, "position": common.NOWHERE}


def attend(arguments, score_bytes):
    """What `forward` returns, with at most so many bytes of scores a step."""
    floats, others, static = recomputation.split(arguments)
    # Compiled once per shape in eager use too.
    return _compiled(static, score_bytes)(floats | others)


@functools.cache
def _compiled(static, score_bytes):
    def run(tensors):
        return _attend(dataclasses.replace(static, **tensors), score_bytes)

    return jax.jit(run)


@dataclasses.dataclass(frozen=True)
class Steps:
    """A step is `chunks` of each of `examples`. It takes `per_example` steps
    to go through one, and `number` for all."""

    chunks: int
    examples: int
    per_example: int
    number: int


def choose_steps(arguments, chunks, score_bytes):
    """Even steps of at most `score_bytes` of scores, if one chunk of every
    head has no more. Of short texts, a step takes several."""
    batch_size, length, num_kv_heads = arguments.key.shape[:3]
    scores = num_kv_heads * common.bytes_of_scores(arguments, chunks)
    most = max(score_bytes // scores, 1)
    num_chunks = common.num_chunks_of(length, chunks)

    def cost(size):
        number = -(-num_chunks // size)
        # Slots added at the end are a copy of all.
        return number * size > num_chunks, number * (size + _STEP_COST)

    size = min(range(max(most // 2, 1), most + 1), key=cost)
    # A step is given the beginning of the next one only.
    size = min(max(size, chunks.after), num_chunks)
    per_example = -(-num_chunks // size)
    examples = 1
    if per_example == 1:
        fitting = min(most // size, batch_size)
        examples = max(
            x for x in range(1, max(fitting, 1) + 1) if batch_size % x == 0
        )
    return Steps(
        size, examples, per_example, batch_size // examples * per_example
    )


def _attend(arguments, score_bytes):
    a = arguments
    chunks = common.choose_chunks(a)
    steps = choose_steps(a, chunks, score_bytes)
    order = common.slot_order(a)
    if order is not None:  # with the slots that fill the last step
        num_slots = steps.per_example * steps.chunks * chunks.size
        order = ordering.pad_end(
            order, num_slots - order.shape[-1], a.query.shape[1], axis=-1
        )
    slots = {
        "query": _in_steps(_in_slot_order(a.query, a, order), steps, chunks),
        "key": _in_steps(_in_slot_order(a.key, a, order), steps, chunks),
        "value": _in_steps(_in_slot_order(a.value, a, order), steps, chunks),
        "position": _positions(a, order, steps, chunks),
    }
    is_first = ops.arange(steps.number, dtype="int32") % steps.per_example == 0
    example = ops.arange(a.query.shape[0], dtype="int32")
    example = ops.reshape(example, (-1, steps.examples))  # [B / r, r]
    example = ops.repeat(example, steps.per_example, axis=0)  # [s, r]
    # A loop is a barrier by itself.
    step = jax.checkpoint(
        functools.partial(_step, arguments, chunks), prevent_cse=False
    )
    ahead = {
        name: _ahead(slots[name], steps, chunks, filler)
        for name, filler in _FILLERS.items()
    }
    nothing = _nothing_borrowed(slots, steps, chunks)
    _, outputs = jax.lax.scan(step, nothing, (slots, ahead, is_first, example))
    outputs = [_out_of_steps(x, a, order) for x in outputs]
    if not a.return_lse:
        return outputs[0]
    lse = outputs[1][..., 0]
    if a.padding_mask is not None:
        lse = ops.where(a.padding_mask[:, :, None], lse, -float("inf"))
    return outputs[0], lse


def _in_slot_order(x, arguments, order):
    """`[B, n, heads, F]` as `[B, m, K, G * F]`."""
    batch_size, length, num_heads, features = x.shape
    num_kv_heads = arguments.key.shape[2]
    x = ordering.zero_padding(x, arguments.padding_mask)
    x = ops.reshape(
        x,
        (
            batch_size,
            length,
            num_kv_heads,
            num_heads // num_kv_heads * features,
        ),
    )
    if order is None:
        return x
    index = ordering.any_token(order, length)  # slots beyond the last token
    return ordering.take_slots(x, index)


def _in_steps(x, steps, chunks, filler=0):
    """`[B, m, ...]` as `[s, r*g*c, ...]`.

    `r` has no axis of its own: with one, XLA copies what the loop reads.
    """
    batch_size, num_slots, *shape = x.shape
    size = steps.chunks * chunks.size
    x = ordering.pad_end(
        x, steps.per_example * size - num_slots, filler, axis=1
    )
    return ops.reshape(x, (steps.number, steps.examples * size, *shape))


def _positions(arguments, order, steps, chunks):
    """Original positions `[s, r*g*c, K or 1]`; `NOWHERE` for what nobody may
    see."""
    batch_size = arguments.query.shape[0]
    position = common.original_positions(arguments, order)
    position = ordering.with_head_axis(position)  # [B or 1, K or 1, m]
    shape = (batch_size, *position.shape[1:])
    position = ops.transpose(ops.broadcast_to(position, shape), (0, 2, 1))
    return _in_steps(position, steps, chunks, filler=common.NOWHERE)


def _ahead(x, steps, chunks, filler):
    """What each step's windows reach ahead to: `[s, r*after*c, ...]`.

    It is the beginning of the next step, and nothing at the end of an example.

    Args:
        x: `[s, r*g*c, ...]`.
    """
    size, rest = chunks.after * chunks.size, x.shape[2:]
    shape = (-1, steps.per_example, steps.examples)
    x = ops.reshape(x, (*shape, x.shape[1] // steps.examples, *rest))
    x = ordering.pad_end(x[:, 1:, :, :size], 1, filler, axis=1)
    return ops.reshape(x, (steps.number, steps.examples * size, *rest))


def _nothing_borrowed(slots, steps, chunks):
    """What the first step of an example borrows: `[r, before*c, ...]`.

    Args:
        slots: dict of `[s, r*g*c, ...]`.
    """
    size = chunks.before * chunks.size
    return {
        name: ops.full(
            (steps.examples, size, *slots[name].shape[2:]),
            filler,
            dtype=slots[name].dtype,
        )
        for name, filler in _FILLERS.items()
    }


def _step(arguments, chunks, borrowed, inputs):
    """Attends with the newest slots.

    Returns:
        What the next step borrows, and a tuple of outputs `[r*g*c, K, ...]`.
    """
    slots, ahead, is_first, example = inputs
    at_hand, lent = {"query": _by_example(slots["query"], example)}, {}
    num_slots = at_hand["query"].shape[1]
    for name, filler in _FILLERS.items():
        nothing = ops.full_like(borrowed[name], filler)
        before = ops.where(is_first, nothing, borrowed[name])
        parts = [_by_example(x[name], example) for x in (slots, ahead)]
        at_hand[name] = ops.concatenate([before, *parts], axis=1)
        lent[name] = at_hand[name][:, num_slots:][:, : before.shape[1]]
    outputs = _attend_slots(arguments, chunks, at_hand, example)
    return lent, [ops.reshape(x, (-1, *x.shape[2:])) for x in outputs]


def _by_example(x, example):
    """`[r*g*c, ...]` as `[r, g*c, ...]`."""
    return ops.reshape(x, (example.shape[0], -1, *x.shape[1:]))


def _attend_slots(arguments, chunks, at_hand, example):
    """Outputs `[r, g*c, K, G*E]` and, if wanted, `[r, g*c, K, G]`.

    Args:
        at_hand: query `[r, g*c, K, G*D]`, key `[r, u, K, D]`, value
            `[r, u, K, E]` and position `[r, u, K or 1]`.
        example: `[r]`.
    """
    a = arguments
    num_examples, num_slots, num_kv_heads = at_hand["query"].shape[:3]
    dtype = softmax.compute_dtype(a.query.dtype)

    def rows(x):  # [r * K, slots, F]
        return ops.cast(ordering.permute_heads(x, None), dtype)

    position = ordering.permute_heads(at_hand["position"][..., None], None)
    if num_examples > 1 and position.shape[0] == num_examples:
        position = ops.repeat(position, num_kv_heads, axis=0)
    position = _with_neighbors(position, chunks)[..., 0]
    output, lse = chunked.attend_chunks(
        a,
        chunks,
        common.cut(rows(at_hand["query"]), chunks, common.num_groups(a)),
        _with_neighbors(rows(at_hand["key"]), chunks),
        _with_neighbors(rows(at_hand["value"]), chunks),
        common.mask_of(a, position, chunks, ops.repeat(example, num_kv_heads)),
        chunked.sinks_of_row(a, num_examples),
    )

    def restore(x):
        x = ops.reshape(x, (num_examples, num_kv_heads, num_slots, -1))
        return ops.transpose(x, (0, 2, 1, 3))

    output = ops.cast(restore(output), a.value.dtype)
    return (output, restore(lse)) if a.return_lse else (output,)


def _with_neighbors(x, chunks):
    """Slots and those around them `[R, u, F]` as `[R, g, S, F]`."""
    x = common.cut(x, chunks, 1)
    num_neighbors = chunks.before + chunks.after
    num_chunks = x.shape[1] - num_neighbors
    parts = [x[:, i : i + num_chunks] for i in range(num_neighbors + 1)]
    return ops.concatenate(parts, axis=2)


def _out_of_steps(x, arguments, order):
    """`[s, r*g*c, K, G*F]` as `[B, n, H, F]` in the original order."""
    batch_size, length, num_heads = arguments.query.shape[:3]
    x = ops.reshape(x, (batch_size, -1, *x.shape[2:]))
    if order is None:
        x = x[:, :length]
    else:
        inverse = common.slots_of_tokens(arguments, order)
        x = ordering.take_slots(x, inverse)
    return ops.reshape(x, (batch_size, length, num_heads, -1))
