"""The masked softmax that every blocked implementation shares.

Letters: `R` rows (queries), `S` columns (keys), `E` value head dim.
"""

import keras
import numpy as np
from keras import ops


def compute_dtype(dtype):
    """The dtype of scores and sums: float32 at least."""
    # Not `result_type`: on JAX and torch it turns float64 into float32.
    dtype = keras.backend.standardize_dtype(dtype)
    return dtype if dtype == "float64" else "float32"


def bias_of(visible, dtype):
    """What to add to scores: 0 where `visible` is true, else far below all.

    Half the lowest number, so that a sum with a score stays finite. Adding
    passes gradients on for nothing; choosing costs a pass over the scores.
    """
    dtype = keras.backend.standardize_dtype(dtype)
    # numpy does not know bfloat16, which reaches as far as float32.
    known = "float32" if dtype == "bfloat16" else dtype
    hidden = float(np.finfo(known).min) / 2
    return ops.where(
        visible, ops.zeros((), dtype), ops.full((), hidden, dtype=dtype)
    )


def attend(
    scores,
    value,
    bias,
    *,
    sees_something=None,
    sinks=None,
    return_lse=False,
    drop=None,
):
    """Softmax over the visible columns, times the values.

    Args:
        scores: `[..., R, S]`, float32 or float64.
        value: `[..., S, E]` in the same dtype.
        bias: from `bias_of`, broadcasts to `scores`.
        sees_something: boolean, broadcasts to `[..., R, 1]`: rows with a
            visible column; `None` if all that matter have one.
        sinks: optional extra logits in the denominator, broadcast to
            `[..., R, 1]`.
        return_lse: whether the log-sum-exp is wanted.
        drop: optional function of the weights `[..., R, S]`: dropout.

    Returns:
        output `[..., R, E]` and log-sum-exp `[..., R]` or `None`. A row that
        attends to nobody has output 0 and, without sinks, log-sum-exp -inf.
    """
    scores = scores + bias
    weights = _softmax(scores)
    output = ops.matmul(drop(weights) if drop else weights, value)
    output = _where(sees_something, output, 0.0)
    if sinks is None and not return_lse:
        return output, None
    lse = _log_sum_exp(scores, weights)
    if sinks is not None:
        lowest = np.finfo(keras.backend.standardize_dtype(scores.dtype)).min
        total = ops.logaddexp(
            _where(sees_something, lse, float(lowest) / 2), sinks
        )
        return output * ops.exp(lse - total), total[..., 0]
    return output, _where(sees_something, lse, -float("inf"))[..., 0]


def _where(condition, x, otherwise):
    if condition is None:
        return x
    return ops.where(condition, x, ops.full((), otherwise, dtype=x.dtype))


def _softmax(scores):
    if scores.shape[-1] == 1:  # Keras warns: it takes this for a mistake
        # One, with a gradient of zero: TensorFlow gives None for constants.
        return 1 + (scores - scores)
    return ops.softmax(scores, axis=-1)


def _log_sum_exp(scores, weights):
    """log-sum-exp from the softmax: log(weight) is score - log-sum-exp, best
    read off at the highest score."""
    if scores.shape[-1] == 1:
        # TensorFlow rewrites log(1 + (x - x)), with a gradient of nan.
        return scores
    highest = ops.amax(scores, axis=-1, keepdims=True)
    return highest - ops.log(ops.amax(weights, axis=-1, keepdims=True))


def score(query, key, scale, attn_logits_soft_cap):
    """Scores `[..., R, S]` of queries `[..., R, D]` and keys `[..., S, D]`.

    The scale goes to the queries, which are smaller than the scores.
    """
    axes = (*range(len(key.shape) - 2), len(key.shape) - 1, len(key.shape) - 2)
    transposed = ops.transpose(key, axes)
    if attn_logits_soft_cap is None:
        return ops.matmul(query * scale, transposed)
    scores = ops.matmul(query * (scale / attn_logits_soft_cap), transposed)
    return attn_logits_soft_cap * ops.tanh(scores)
