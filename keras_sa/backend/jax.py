"""What JAX needs of its own; see `keras_sa.backend`.

Letters of tiles: `L` queries, `C` blocks, `b` keys in a block, `D` head dim,
`E` value head dim, `t` tiles, `T` queries in a tile; `p` pieces of `s` tiles.
"""

import contextlib
import importlib.util

import jax
import jax.numpy as jnp
import keras

from keras_sa.backend import triton_loading
from keras_sa.backend.neutral import gives_memory_back
from keras_sa.backend.neutral import is_in_backward
from keras_sa.backend.neutral import is_tracing
from keras_sa.backend.neutral import is_transforming
from keras_sa.backend.neutral import need_gradients
from keras_sa.backend.neutral import peak_bytes_of_device
from keras_sa.backend.neutral import top_k

# Scores of tiles at a time: 1 MB of float32.
_SCORES = 2**18


def compile(function):
    return jax.jit(function)


def compile_inference(model, function):
    @jax.jit
    def run(values, *inputs):
        with keras.StatelessScope(zip(model.variables, values)):
            return function(*inputs)

    def call(*inputs):
        # Weights that are no arguments would be constants of the program.
        return run([variable.value for variable in model.variables], *inputs)

    return call


def value_and_gradients(function):
    def run(*tensors):
        def scalar(*tensors):
            result = function(*tensors)
            return (result[0] if isinstance(result, tuple) else result), result

        (_, result), gradients = jax.value_and_grad(
            scalar, argnums=tuple(range(len(tensors))), has_aux=True
        )(*tensors)
        return result, gradients

    return run


def wait(tensors):
    return jax.block_until_ready(tensors)


def float64():
    return jax.enable_x64(True)


def no_gradients():
    return contextlib.nullcontext()


def _device(tensor):
    if isinstance(tensor, jax.core.Tracer) or not isinstance(tensor, jax.Array):
        default = jax.config.jax_default_device
        return (
            default if hasattr(default, "platform") else jax.devices(default)[0]
        )
    return next(iter(tensor.devices()))


def device_kind(tensor):
    return _device(tensor).platform


def capability(tensor):
    return _capability(_device(tensor))


def _capability(device):
    major, minor = device.compute_capability.split(".")
    return 10 * int(major) + int(minor)


def why_no_triton(tensor):
    if not all(isinstance(size, int) for size in tensor.shape):
        return "`triton` needs known sizes."
    return why_no_triton_on(_device(tensor))


def why_no_triton_on(device):
    if device.platform != "gpu" or not hasattr(device, "compute_capability"):
        return (
            "`triton` needs an NVIDIA GPU; JAX runs on "
            f"{device.platform!r} ({device.device_kind})."
        )
    for package in ("triton", "jax_triton"):
        if importlib.util.find_spec(package) is None:
            return (
                f"`triton` needs the package {package!r}: "
                "`pip install 'keras_sa[jax-gpu]'`."
            )
    found = _capability(device)
    if found < triton_loading.OLDEST_CAPABILITY:
        return triton_loading.too_old(found)
    triton_loading.load()
    return None


def take_rows(x, index, back):
    return jnp.take(x, index, axis=0)


def takes_tiles(query, row):
    """On a GPU all tiles are computed at once."""
    return device_kind(query) == "cpu" and isinstance(row.shape[0], int)


@jax.custom_vjp
def attend_to_tiles(query, key, value, row, block, visible):
    pieces = _pieces(key, row, block, visible)

    def attend_to_some(piece):
        row, block, own_visible = piece
        seen = visible if own_visible is None else own_visible
        scores = _scores(query[row], key[block], seen)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        if seen is not None:  # far above what is hidden
            highest = jnp.maximum(highest, jnp.finfo(scores.dtype).min / 2)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        return highest, total, weights @ value[block]

    results = jax.lax.map(attend_to_some, pieces)
    return tuple(_join(x, row) for x in results)


def _tiles_forward(query, key, value, row, block, visible):
    results = attend_to_tiles(query, key, value, row, block, visible)
    return results, (query, key, value, row, block, visible, results[0])


def _tiles_backward(saved, gradients):
    query, key, value, row, block, visible, highest = saved
    pieces = _pieces(key, row, block, visible, highest, *gradients[1:])

    def add(sums, piece):
        query_grad, key_grad, value_grad = sums
        row, block, own_visible, highest, total_grad, weighted_grad = piece
        queries, keys, values = query[row], key[block], value[block]
        seen = visible if own_visible is None else own_visible
        weights = jnp.exp(_scores(queries, keys, seen) - highest)
        of_values = jnp.einsum("tqk,tqe->tke", weights, weighted_grad)
        of_weights = jnp.einsum("tqe,tke->tqk", weighted_grad, values)
        of_scores = weights * (of_weights + total_grad)
        of_keys = jnp.einsum("tqk,tqd->tkd", of_scores, queries)
        return (
            query_grad.at[row].add(of_scores @ keys),
            key_grad.at[block].add(of_keys),
            value_grad.at[block].add(of_values),
        ), None

    zeros = tuple(jnp.zeros_like(x) for x in (query, key, value))
    sums, _ = jax.lax.scan(add, zeros, pieces)
    return *sums, None, None, None


attend_to_tiles.defvjp(_tiles_forward, _tiles_backward)


def _scores(queries, keys, visible):
    scores = jnp.einsum("tqd,tkd->tqk", queries, keys)
    if visible is None:
        return scores
    return jnp.where(visible, scores, jnp.finfo(scores.dtype).min)


def _pieces(key, row, block, visible, *others):
    """What belongs to each tile, `[t, ...]`, as `[p, s, ...]`.

    `visible` is `None` there if it is the same for all tiles. What fills the
    last piece has gradients of zero.
    """
    if visible is not None and visible.shape[0] == 1:
        visible = None
    num_tiles, num_rows = row.shape
    most = max(_SCORES // (num_rows * key.shape[1]), 1)
    num_pieces = -(-num_tiles // most)
    size = -(-num_tiles // num_pieces)

    def cut(x):
        missing = num_pieces * size - num_tiles
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(num_pieces, size, *x.shape[1:])

    return jax.tree.map(cut, (row, block, visible, *others))


def _join(x, row):
    """`[p, s, ...]` as `[t, ...]`."""
    return x.reshape(-1, *x.shape[2:])[: row.shape[0]]
