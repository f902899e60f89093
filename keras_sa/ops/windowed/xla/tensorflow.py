"""The loop, as a program of TensorFlow.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `G` query
heads per key/value head, `N = B * K`, `D` head dim, `E` value head dim, `F`
features, `m` slots, `c` slots in a chunk, `g` chunks in a group, `p` groups of
a sequence, `u` slots of a group with the chunks it borrows from its
neighbors, `r` groups in a step, `s` steps: `s * r >= N * p`.
"""

import dataclasses
import functools

import tensorflow as tf
from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops.windowed import chunked
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import recomputation


def attend(arguments, score_bytes):
    """What `forward` returns, with at most so many bytes of scores a step."""
    floats, others, static = recomputation.split(arguments)
    names = tuple(floats)
    outputs = _with_gradients(
        _compiled(_attend, static, names, score_bytes),
        _compiled(_gradients, static, names, score_bytes),
        functools.partial(_gradients, static, names, None),
        others,
        tuple(floats.values()),
    )
    return outputs if arguments.return_lse else outputs[0]


@functools.cache
def _compiled(function, static, names, score_bytes):
    """`function` of the tensors, kept: XLA compiles it once per shape."""
    function = functools.partial(function, static, names, score_bytes)
    return tf.function(function, jit_compile=True, autograph=False)


def _attend(static, names, score_bytes, others, floats):
    """A tuple of outputs; in one piece where `score_bytes` is `None`."""
    tensors = dict(zip(names, floats)) | others
    arguments = dataclasses.replace(static, **tensors)
    if score_bytes is None:
        outputs = chunked.attend_in_slot_order(
            chunked.attend_at_once, arguments
        )
    else:
        attend = functools.partial(_attend_by_groups, score_bytes)
        outputs = chunked.attend_in_slot_order(attend, arguments)
    return outputs if static.return_lse else (outputs,)


def _gradients(static, names, score_bytes, others, floats, upstream):
    attend = functools.partial(_attend, static, names, score_bytes, others)
    return _pull_back(attend, floats, upstream)


def _pull_back(function, tensors, upstream):
    """The gradients of the tensors, given those of what `function` returns."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = function(tensors)
    return tape.gradient(
        outputs, tensors, upstream, unconnected_gradients="zero"
    )


def _with_gradients(attend, gradients, gradients_in_one_piece, others, floats):
    """Runs `attend`. Its gradient keeps no tensors but the arguments.

    XLA cannot differentiate the loop of a gradient. A gradient of a gradient
    is therefore that of the portable path, with its memory.
    """

    @tf.custom_gradient
    def first(*floats):
        # Nothing inside is to be recorded for a gradient of its own.
        outputs = attend(others, _stopped(floats))
        return outputs, lambda *upstream: second(*floats, *upstream)

    @tf.custom_gradient
    def second(*tensors):
        def run(function, tensors):
            return function(
                others, tensors[: len(floats)], tensors[len(floats) :]
            )

        def gradient(*upstream):
            in_one_piece = functools.partial(run, gradients_in_one_piece)
            return _pull_back(in_one_piece, tensors, upstream)

        return run(gradients, _stopped(tensors)), gradient

    return first(*floats)


def _stopped(tensors):
    return tuple(tf.stop_gradient(x) for x in tensors)


@dataclasses.dataclass(frozen=True)
class Groups:
    """`chunks` in a group, groups `per_sequence`, `rows` of groups in each of
    the `steps`. Integer tensors where the length is unknown."""

    chunks: int
    per_sequence: int
    rows: int
    steps: int


def choose_groups(chunks, num_rows, num_slots, most_chunks):
    """Even steps of at most `most_chunks` chunks.

    A long sequence is cut in groups; of short ones, a step takes several. A
    group has at least the chunks that its neighbor borrows.
    """
    reach = max(chunks.before, chunks.after, 1)
    most_chunks = max(most_chunks, reach)
    num_chunks = _ceil_divide(num_slots, chunks.size)
    size = _ceil_divide(num_chunks, _ceil_divide(num_chunks, most_chunks))
    size = _maximum(size, reach)
    per_sequence = _ceil_divide(num_chunks, size)
    num_groups = num_rows * per_sequence
    steps = _ceil_divide(num_groups, _maximum(most_chunks // size, 1))
    steps = _maximum(steps, 1)  # an empty batch too
    return Groups(size, per_sequence, _ceil_divide(num_groups, steps), steps)


def _ceil_divide(x, y):
    return (x + y - 1) // y


def _maximum(x, y):
    return max(x, y) if isinstance(x, int) else ops.maximum(x, y)


def _attend_by_groups(
    score_bytes, arguments, chunks, query, key, value, position
):
    """`attend` of `chunked.attend_in_slot_order`, as a loop."""
    a = arguments
    num_rows, num_slots = ops.shape(query)[:2]
    most_chunks = score_bytes // common.bytes_of_scores(a, chunks)
    groups = choose_groups(chunks, num_rows, num_slots, most_chunks)
    position = ops.broadcast_to(position, (num_rows, num_slots))
    floats = {
        "query": _cut(query * a.scale, groups, chunks),
        "key": _with_borrowed(key, groups, chunks),
        "value": _with_borrowed(value, groups, chunks),
    }
    if a.sinks is not None:
        floats["sinks"] = _for_each_group(chunked.sinks_of_row(a), groups)
    integers = {"position": _positions_with_borrowed(position, groups, chunks)}
    if a.attention_mask is not None:
        example = chunked.example_of_row(a)
        integers["example"] = _for_each_group(example, groups)
    step = functools.partial(
        _attend_groups, dataclasses.replace(a, scale=1.0), chunks
    )
    outputs = _map_with_recomputation(
        step,
        {name: _in_steps(x, groups, 0) for name, x in floats.items()},
        {
            name: _in_steps(x, groups, common.NOWHERE)
            for name, x in integers.items()
        },
        num_outputs=1 + a.return_lse,
    )
    outputs = [_out_of_steps(x, num_rows, groups) for x in outputs]
    return outputs[0], outputs[1] if a.return_lse else None


def _cut(x, groups, chunks):
    """`[N, m, F]` as `[N, p, g*c, F]`."""
    size = groups.chunks * chunks.size
    return common.cut(x, common.Chunks(size, 0, 0), 1)


def _with_borrowed(x, groups, chunks):
    """`[N, m, F]` as `[N, p, u, F]`: each group between its neighbors' ends.

    The first and the last group are neighbors; their positions hide that.
    """
    x = _cut(x, groups, chunks)
    front = (groups.chunks - chunks.before) * chunks.size
    back = chunks.after * chunks.size
    parts = [x]
    if chunks.before:
        parts = [ops.roll(x, 1, axis=1)[:, :, front:], *parts]
    if chunks.after:
        parts = [*parts, ops.roll(x, -1, axis=1)[:, :, :back]]
    return ops.concatenate(parts, axis=2)


def _positions_with_borrowed(position, groups, chunks):
    """`[N, m]` as `[N, p, u]`; `NOWHERE` beyond the ends."""
    size = groups.chunks * chunks.size
    position = common.positions_with_neighbors(
        position, common.Chunks(size, 1, 1)
    )  # [N, p, 3*g*c]
    front = size - chunks.before * chunks.size
    return position[:, :, front : 2 * size + chunks.after * chunks.size]


def _for_each_group(x, groups):
    """`[N, ...]` as `[N, p, ...]`."""
    shape = ops.shape(x)
    shape = (shape[0], groups.per_sequence, *shape[1:])
    return ops.broadcast_to(ops.expand_dims(x, 1), shape)


def _in_steps(x, groups, filler):
    """`[N, p, ...]` as `[s, r, ...]`."""
    num_rows, per_sequence, *shape = ops.shape(x)
    num_groups = num_rows * per_sequence
    x = ops.reshape(x, (num_groups, *shape))
    missing = groups.steps * groups.rows - num_groups
    x = ordering.pad_end(x, missing, filler, axis=0)
    return ops.reshape(x, (groups.steps, groups.rows, *shape))


def _out_of_steps(x, num_rows, groups):
    """`[s, r, g, ...]` as `[N, p*g, ...]`."""
    shape = ops.shape(x)[3:]
    x = ops.reshape(x, (-1, groups.chunks, *shape))
    x = x[: num_rows * groups.per_sequence]
    return ops.reshape(
        x, (num_rows, groups.per_sequence * groups.chunks, *shape)
    )


def _attend_groups(arguments, chunks, floats, integers):
    """One step: the outputs `[r, g, c*G, ...]` of `r` groups."""

    def own(x):  # the chunks that are not borrowed
        return x[:, chunks.before : ops.shape(x)[1] - chunks.after]

    position = common.positions_with_neighbors(integers["position"], chunks)
    mask = common.mask_of(
        arguments, own(position), chunks, integers.get("example")
    )
    output, lse = chunked.attend_chunks(
        arguments,
        chunks,
        common.cut(floats["query"], chunks, common.num_groups(arguments)),
        own(common.with_neighbors(floats["key"], chunks)),
        own(common.with_neighbors(floats["value"], chunks)),
        mask,
        floats.get("sinks"),
    )
    return (output, lse) if arguments.return_lse else (output,)


def _map_with_recomputation(function, floats, integers, num_outputs):
    """`function` of each step; its gradient runs `function` again.

    Args:
        function: of two dicts of tensors, returns a tuple of tensors in the
            dtype of the floats.
        floats: dict of float tensors `[s, ...]`.
        integers: dict of integer tensors `[s, ...]`.
        num_outputs: how many tensors `function` returns.

    Returns:
        A tuple of tensors `[s, ...]`.
    """
    names, dtype = tuple(floats), floats["query"].dtype

    def run(integers, floats):
        return function(dict(zip(names, floats)), integers)

    def pull_back(integers, floats, upstream):
        return _pull_back(functools.partial(run, integers), floats, upstream)

    def each_step(function, num_outputs, *tensors):
        return tf.map_fn(
            lambda step: function(*step),
            (integers, *tensors),
            fn_output_signature=(dtype,) * num_outputs,
        )

    @tf.custom_gradient
    def mapped(*floats):
        def gradient(*upstream):
            return each_step(pull_back, len(floats), floats, upstream)

        return each_step(run, num_outputs, floats), gradient

    return mapped(*floats.values())
