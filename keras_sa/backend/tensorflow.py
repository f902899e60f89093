"""What TensorFlow needs of its own; see `keras_sa.backend`.

Letters of tiles: `L` queries, `C` blocks, `b` keys in a block, `D` head dim,
`E` value head dim, `t` tiles, `T` queries in a tile; `p` pieces of `s` tiles.
"""

import contextlib

import tensorflow as tf

from keras_sa.backend.neutral import is_in_backward
from keras_sa.backend.neutral import is_tracing
from keras_sa.backend.neutral import is_transforming
from keras_sa.backend.neutral import need_gradients
from keras_sa.backend.neutral import top_k

# Scores of tiles at a time: 4 MB of float32, by measurement.
_SCORES = 2**20


def compile(function):
    return tf.function(function, autograph=False)


def compile_inference(model, function):
    return tf.function(function, jit_compile=model.jit_compile, autograph=False)


def value_and_gradients(function):
    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)
        scalar = result[0] if isinstance(result, tuple) else result
        return result, tape.gradient(
            scalar, list(tensors), unconnected_gradients="zero"
        )

    return run


def wait(tensors):
    return tensors


def float64():
    return contextlib.nullcontext()


def no_gradients():
    return contextlib.nullcontext()


def device_kind(tensor):
    # Such as "/job:localhost/replica:0/task:0/device:GPU:0"; a tensor of a
    # graph has one where it was placed by hand.
    name = (getattr(tensor, "device", None) or "").lower()
    for kind in ("gpu", "cpu"):
        if f":{kind}:" in f"{name}:":
            return kind
    return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def gives_memory_back():
    return False


def peak_bytes_of_device(call, tensor):
    device = tf.DeviceSpec.from_string(tensor.device)
    name = f"{device.device_type}:{device.device_index}"
    if device.device_type != "GPU":
        return None
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    wait(call())
    return tf.config.experimental.get_memory_info(name)["peak"] - before


def take_rows(x, index, back):
    @tf.custom_gradient
    def take(x):
        return tf.gather(x, index), lambda g: take_rows(g, back, index)

    return take(x)


def takes_tiles(query, row):
    """On a GPU all tiles are computed at once."""
    return device_kind(query) == "cpu"


def attend_to_tiles(query, key, value, row, block, visible):
    tiles = row, block, visible

    @tf.custom_gradient
    def run(*tensors):
        results = _results(*_stopped(tensors), *tiles)

        def gradient(_, of_total, of_output):
            return _differentiate(
                tensors, (of_total, of_output), results[0], tiles
            )

        return results, gradient

    return run(query, key, value)


def _differentiate(tensors, upstream, highest, tiles):
    """The gradients of query, key and value.

    XLA cannot differentiate a loop: a gradient of these gradients is that of
    all tiles at once.
    """
    highest = tf.stop_gradient(highest)

    @tf.custom_gradient
    def run(*tensors):
        gradients = _gradients(_map, highest, tiles, *_stopped(tensors))

        def gradient(*upstream):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                at_once = _gradients(_at_once, highest, tiles, *tensors)
            return tape.gradient(
                at_once, tensors, upstream, unconnected_gradients="zero"
            )

        return gradients, gradient

    return run(*tensors, *upstream)


def _stopped(tensors):
    return tuple(tf.stop_gradient(x) for x in tensors)


def _results(query, key, value, row, block, visible):
    def attend_to_some(row, block, visible):
        queries, keys = tf.gather(query, row), tf.gather(key, block)
        scores = _scores(queries, keys, visible)
        highest = tf.reduce_max(scores, axis=-1, keepdims=True)
        if visible is not None:  # far above what is hidden
            highest = tf.maximum(highest, scores.dtype.min / 2)
        weights = tf.exp(scores - highest)
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        return highest, total, tf.matmul(weights, tf.gather(value, block))

    return _map(attend_to_some, key, (row, block), visible)


def _gradients(map_tiles, highest, tiles, query, key, value, *upstream):
    row, block, visible = tiles

    def differentiate_some(row, block, visible, highest, of_total, of_output):
        queries, keys = tf.gather(query, row), tf.gather(key, block)
        weights = tf.exp(_scores(queries, keys, visible) - highest)
        of_scores = weights * (
            tf.matmul(of_output, tf.gather(value, block), transpose_b=True)
            + of_total
        )
        return (
            tf.matmul(of_scores, keys),
            tf.matmul(of_scores, queries, transpose_a=True),
            tf.matmul(weights, of_output, transpose_a=True),
        )

    of_queries, of_keys, of_values = map_tiles(
        differentiate_some, key, (row, block), visible, (highest, *upstream)
    )
    return (
        tf.math.unsorted_segment_sum(of_queries, row, tf.shape(query)[0]),
        _sum_by_block(of_keys, block, key),
        _sum_by_block(of_values, block, value),
    )


def _sum_by_block(x, block, like):
    """Sums of `x` `[t, b, F]` over the tiles of each block `[C, b, F]`."""
    # Not `segment_sum`, which is faster for blocks in order: XLA has none.
    return tf.math.unsorted_segment_sum(x, block, tf.shape(like)[0])


def _scores(queries, keys, visible):
    scores = tf.matmul(queries, keys, transpose_b=True)
    if visible is None:
        return scores
    return tf.where(visible, scores, scores.dtype.min)


def _at_once(function, key, tiles, visible, others):
    """`_map` without a loop."""
    return function(*tiles, visible, *others)


def _map(function, key, tiles, visible, others=()):
    """`function` of some tiles at a time: three tensors `[t, ...]`.

    Args:
        function: takes some of `tiles`, the keys visible to them or `None`,
            and some of the `others`.
        tiles, others: tensors `[t, ...]`.
        visible: `[t or 1, ...]` or `None`.
    """
    num_tiles, num_rows = tf.shape(tiles[0])[0], tf.shape(tiles[0])[1]
    is_shared = visible is None or visible.shape[0] == 1
    tensors = [*tiles, *others] if is_shared else [*tiles, visible, *others]
    most = tf.maximum(_SCORES // (num_rows * tf.shape(key)[1]), 1)
    num_pieces = (num_tiles + most - 1) // most
    size = (num_tiles + num_pieces - 1) // num_pieces

    def cut(x):
        missing = num_pieces * size - num_tiles
        x = tf.pad(x, [(0, missing)] + [(0, 0)] * (len(x.shape) - 1))
        return tf.reshape(x, (num_pieces, size, *x.shape[1:]))

    def call(piece):
        if is_shared:
            return function(*piece[:2], visible, *piece[2:])
        return function(*piece)

    pieces = tf.map_fn(
        call,
        [cut(x) for x in tensors],
        fn_output_signature=(key.dtype,) * 3,
        parallel_iterations=1,
    )
    return [
        tf.reshape(x, (num_pieces * size, *x.shape[2:]))[:num_tiles]
        for x in pieces
    ]
