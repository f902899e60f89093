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


def attend(
    scores,
    value,
    visible,
    *,
    sinks=None,
    return_lse=False,
    drop=None,
):
    """Softmax over the visible columns, times the values.

    Args:
        scores: `[..., R, S]`, float32 or float64.
        value: `[..., S, E]` in the same dtype.
        visible: boolean, broadcasts to `scores`.
        sinks: optional extra logits in the denominator, broadcast to
            `[..., R, 1]`.
        return_lse: whether the log-sum-exp is wanted.
        drop: optional function of the weights `[..., R, S]`: dropout.

    Returns:
        output `[..., R, E]` and log-sum-exp `[..., R]` or `None`. A row that
        sees nothing has output 0 and, without sinks, log-sum-exp -inf.
    """
    lowest = float(np.finfo(keras.backend.standardize_dtype(scores.dtype)).min)
    scores = ops.where(visible, scores, lowest)
    weights = _softmax(scores)
    output = ops.matmul(drop(weights) if drop else weights, value)
    # In a row that sees nothing, the softmax is uniform.
    something = ops.any(visible, axis=-1, keepdims=True)
    output = ops.where(something, output, ops.zeros_like(output))
    if sinks is None and not return_lse:
        return output, None
    lse = _log_sum_exp(scores, weights)
    if sinks is not None:
        lse = ops.where(something, lse, lowest / 2)
        total = ops.logaddexp(lse, sinks)
        return output * ops.exp(lse - total), total[..., 0]
    return output, ops.where(something, lse, -float("inf"))[..., 0]


def _softmax(scores):
    if scores.shape[-1] == 1:  # Keras warns: it takes this for a mistake
        # One, with a gradient of zero: TensorFlow gives None for constants.
        return 1 + (scores - scores)
    return ops.softmax(scores, axis=-1)


def _log_sum_exp(scores, weights):
    """log-sum-exp from the softmax: log(weight) is score - log-sum-exp, best
    read off at the highest score."""
    highest = ops.amax(scores, axis=-1, keepdims=True)
    return highest - ops.log(ops.amax(weights, axis=-1, keepdims=True))


def score(query, key, scale, logit_soft_cap):
    """Scores `[..., R, S]` of queries `[..., R, D]` and keys `[..., S, D]`.

    The scale goes to the queries, which are smaller than the scores.
    """
    axes = (*range(len(key.shape) - 2), len(key.shape) - 1, len(key.shape) - 2)
    transposed = ops.transpose(key, axes)
    if logit_soft_cap is None:
        return ops.matmul(query * scale, transposed)
    scores = ops.matmul(query * (scale / logit_soft_cap), transposed)
    return logit_soft_cap * ops.tanh(scores)
