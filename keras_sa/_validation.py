"""Checks that run before any work, with messages in the Keras form."""

import numbers

import keras
import numpy as np

from keras_sa import backend

_MOST_ENTRIES = 2**31 - 1


def check_positive_int(name, value):
    return _check_int(name, value, 1, "a positive integer")


def check_non_negative_int(name, value):
    return _check_int(name, value, 0, "an integer of 0 or more")


def _check_int(name, value, least, expected):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(
            f"`{name}` is expected to be {expected}. "
            f"Received: {name}={value!r} (of type {type(value).__name__})"
        )
    if value < least:
        raise ValueError(
            f"`{name}` is expected to be {expected}. Received: {name}={value}"
        )
    return int(value)


def check_one_of(name, value, choices):
    if value not in choices:
        raise ValueError(
            f"`{name}` is expected to be one of {tuple(choices)}. "
            f"Received: {name}={value!r}"
        )
    return value


def check_rate(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"`{name}` is expected to be a number in [0, 1). "
            f"Received: {name}={value!r}"
        )
    if not 0 <= value < 1:
        raise ValueError(
            f"`{name}` is expected to be a number in [0, 1). "
            f"Received: {name}={value}"
        )
    return value


def check_seed(seed):
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ValueError(
            f"`seed` is expected to be an int. Received: seed={seed!r}"
        )
    if not -(2**31) <= seed < 2**32:
        raise ValueError(
            "`seed` is expected to fit in 32 bits: from -2**31 to 2**32 - 1. "
            f"Received: seed={seed}"
        )
    return int(seed)


def check_qkv(query, key, value):
    """Self-attention shapes: `[B, n, H, D]`, `[B, n, K, D]`, `[B, n, K, E]`."""
    shapes = {
        "query": tuple(query.shape),
        "key": tuple(key.shape),
        "value": tuple(value.shape),
    }
    for name, shape in shapes.items():
        if len(shape) != 4:
            raise ValueError(
                f"`{name}` is expected to have rank 4: [batch, length, heads, "
                f"head_dim]. Received: {_describe(shapes)}"
            )
    for what, axis in (("batch sizes", 0), ("lengths", 1)):
        if not _all_equal(shape[axis] for shape in shapes.values()):
            raise ValueError(
                f"`query`, `key` and `value` are expected to have equal {what}"
                " (self-attention). For cross-attention use "
                "`keras.ops.dot_product_attention`. "
                f"Received: {_describe(shapes)}"
            )
    num_heads, num_key_value_heads = shapes["query"][2], shapes["key"][2]
    if shapes["value"][2] != num_key_value_heads:
        raise ValueError(
            "`key` and `value` are expected to have the same number of heads. "
            f"Received: {_describe(shapes)}"
        )
    if num_heads % num_key_value_heads != 0:
        raise ValueError(
            "The number of query heads is expected to be a multiple of the "
            f"number of key/value heads. Received: {_describe(shapes)}"
        )
    if shapes["query"][3] != shapes["key"][3]:
        raise ValueError(
            "`query` and `key` are expected to have the same head dim. "
            f"Received: {_describe(shapes)}"
        )
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not keras.backend.is_float_dtype(tensor.dtype):
            raise ValueError(
                f"`{name}` is expected to be floating point. Received: "
                f"{name}.dtype={keras.backend.standardize_dtype(tensor.dtype)}"
            )


def _describe(shapes):
    # Only for an error: `torch.compile` cannot write an unknown size.
    return ", ".join(f"{k}.shape={v}" for k, v in shapes.items())


def _all_equal(sizes):
    """Whether the sizes that are known agree."""
    known = [size for size in sizes if size is not None]
    return all(size == known[0] for size in known)


def check_mask_dtype(name, mask):
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool" and "int" not in dtype:
        raise ValueError(
            f"`{name}` is expected to be boolean or integer, with true or 1 "
            f"for what may be attended to. Received: {name}.dtype={dtype}"
        )


def check_padding_mask(padding_mask, batch_size, length):
    """Returns the mask as a boolean tensor `[B, n]`, or `None`."""
    if padding_mask is None:
        return None
    padding_mask = keras.ops.convert_to_tensor(padding_mask)
    check_mask_dtype("padding_mask", padding_mask)
    shape = tuple(padding_mask.shape)
    expected = (batch_size, length)
    if len(shape) != 2 or not all(
        _all_equal(pair) for pair in zip(shape, expected)
    ):
        raise ValueError(
            f"`padding_mask` is expected to have shape {expected}. "
            f"Received: padding_mask.shape={shape}"
        )
    return keras.ops.cast(padding_mask, "bool")


def check_attention_mask(attention_mask, batch_size, length):
    """Returns the mask as a boolean tensor `[B or 1, n or 1, n]`, or `None`."""
    if attention_mask is None:
        return None
    if not hasattr(attention_mask, "shape"):
        attention_mask = np.asarray(attention_mask)
    shape = tuple(attention_mask.shape)
    fits = len(shape) == 3 and (
        shape[0] == 1 or _all_equal((shape[0], batch_size))
    )
    fits = fits and _all_equal((shape[2], length))
    if not fits or not (shape[1] == 1 or _all_equal((shape[1], length))):
        raise ValueError(
            f"`attention_mask` is expected to have shape ({batch_size} or 1, "
            f"{length} or 1, {length}). "
            f"Received: attention_mask.shape={shape}"
        )
    if None not in shape and np.prod(shape, dtype="int64") > _MOST_ENTRIES:
        raise ValueError(
            f"`attention_mask` is expected to have at most {_MOST_ENTRIES} "
            "entries: they are looked up by int32 indices. Say what you can "
            "with window_size, is_causal and padding_mask, which have no "
            f"limit. Received: attention_mask.shape={shape}"
        )
    attention_mask = keras.ops.convert_to_tensor(attention_mask)
    check_mask_dtype("attention_mask", attention_mask)
    return keras.ops.cast(attention_mask, "bool")


def check_sinks(sinks, num_heads):
    if sinks is None:
        return None
    sinks = keras.ops.convert_to_tensor(sinks)
    if tuple(sinks.shape) != (num_heads,):
        raise ValueError(
            f"`sinks` is expected to have shape ({num_heads},): one logit per "
            f"query head. Received: sinks.shape={tuple(sinks.shape)}"
        )
    return sinks


def check_number(name, value):
    """A positive, finite number, or a scalar tensor, or `None`."""
    if not isinstance(value, (numbers.Real, np.generic, np.ndarray)):
        return value
    is_number = np.ndim(value) == 0 and not isinstance(value, (bool, np.bool_))
    if not (is_number and 0 < value < float("inf")):
        raise ValueError(
            f"`{name}` is expected to be None or a positive, finite number. "
            f"Received: {name}={value}"
        )
    return value


def check_hidden_first(hidden_first, batch_size):
    """Returns an int or an int32 tensor `[B]`, or `None` for nothing hidden."""
    if hidden_first is None:
        return None
    if isinstance(hidden_first, (int, np.integer)):
        if isinstance(hidden_first, bool) or hidden_first < 0:
            raise ValueError(
                "`hidden_first` is expected not to be negative. "
                f"Received: hidden_first={hidden_first}"
            )
        return int(hidden_first) or None
    hidden_first = keras.ops.convert_to_tensor(hidden_first)
    shape = tuple(hidden_first.shape)
    dtype = keras.backend.standardize_dtype(hidden_first.dtype)
    fits = len(shape) == 1 and _all_equal((*shape, batch_size))
    if "int" not in dtype or not fits:
        raise ValueError(
            "`hidden_first` is expected to be None, an int, or integers of "
            f"shape ({batch_size},). Received: "
            f"hidden_first.shape={shape}, hidden_first.dtype={dtype}"
        )
    return keras.ops.cast(hidden_first, "int32")


def check_permutation(permutation, batch_size, length, num_key_value_heads):
    """Returns an int32 tensor of shape `[n]`, `[B, n]` or `[B, K, n]`."""
    values = concrete(permutation)
    permutation = keras.ops.convert_to_tensor(permutation)
    shape = tuple(permutation.shape)
    fits = (
        1 <= len(shape) <= 3
        and _all_equal((shape[-1], length))
        and (
            len(shape) < 2
            or shape[0] == 1
            or _all_equal((shape[0], batch_size))
        )
        and (len(shape) < 3 or shape[1] == num_key_value_heads)
    )
    if not fits:
        raise ValueError(
            f"`permutation` is expected to have shape ({length},), "
            f"({batch_size}, {length}) or ({batch_size} or 1, "
            f"{num_key_value_heads}, {length}). "
            f"Received: permutation.shape={shape}"
        )
    dtype = keras.backend.standardize_dtype(permutation.dtype)
    if "int" not in dtype:
        raise ValueError(
            "`permutation` is expected to hold integers. "
            f"Received: permutation.dtype={dtype}"
        )
    if values is not None:
        _check_is_permutation(values)
    return keras.ops.cast(permutation, "int32")


def _check_is_permutation(values):
    expected = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    if not np.array_equal(np.sort(values, axis=-1), expected):
        raise ValueError(
            "`permutation` is expected to hold every position 0 .. "
            f"{values.shape[-1] - 1} once. Received: permutation={values}"
        )


def concrete(x):
    """The value as a numpy array; `None` while a framework traces, and for a
    tensor on an accelerator, which would stall until it is copied."""
    if backend.is_tracing() or backend.is_transforming():
        return None
    if keras.ops.is_tensor(x) and backend.device_kind(x) != "cpu":
        return None
    try:
        return keras.ops.convert_to_numpy(x)
    # A JAX tracer raises a TypeError, a tensor of a TensorFlow graph a
    # NotImplementedError.
    except (TypeError, NotImplementedError):
        return None
