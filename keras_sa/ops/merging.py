"""Put the outputs of several attentions together.

Letters: `B` batch, `n` tokens, `H` heads, `E` value head dim.
"""

from keras import ops

from keras_sa.ops import softmax


def gated_sum(paths, gates):
    """Sum of gate * path: the small world of two attentions.

    Args:
        paths: list of tensors `[B, n, H, E]`.
        gates: list, as long, of tensors that broadcast to them, such as
            `[B, n, H, 1]` for a gate per head.

    Returns:
        `[B, n, H, E]` in the dtype of the first path, added up in float32 if
        the gates are.

    Raises:
        ValueError: if there are no paths, or not one gate for each.

    Example:

    >>> import keras
    >>> path = keras.ops.ones((1, 2, 3, 4))
    >>> total = keras_sa.ops.gated_sum([path, path], [0.5, 0.25])
    >>> float(total[0, 0, 0, 0])
    0.75

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    _check_pairs("paths", paths, "gates", gates)
    total = ops.multiply(paths[0], gates[0])
    for path, gate in zip(paths[1:], gates[1:]):
        total = ops.add(total, ops.multiply(path, gate))
    return ops.cast(total, paths[0].dtype)


def merge_attention(outputs, lses, *, return_lse=False):
    """One softmax over the union of disjoint sets of keys.

    Each part is an attention over some keys, with its log-sum-exp. If no key
    is in two parts, the result is attention over all of them in one softmax:
    no parameters, nothing to train. Attention sinks may be in one part only.

    Args:
        outputs: list of `[B, n, H, E]`.
        lses: list, as long, of `[B, n, H]`: log-sum-exp of each part.
        return_lse: whether to return the log-sum-exp of the union as well.

    Returns:
        `[B, n, H, E]` in the dtype of the first output; with `return_lse`
        also `[B, n, H]`. Where every part is empty (-inf), output 0 and -inf.

    Raises:
        ValueError: if there are no outputs, or not one log-sum-exp for each.

    Example:

    >>> import keras
    >>> a = keras.ops.ones((1, 2, 3, 4))
    >>> lse = keras.ops.zeros((1, 2, 3))
    >>> merged = keras_sa.ops.merge_attention([a, 3 * a], [lse, lse])
    >>> float(merged[0, 0, 0, 0])
    2.0

    Reference:
        FlashAttention, https://arxiv.org/abs/2205.14135, section 3.1
    """
    _check_pairs("outputs", outputs, "lses", lses)
    dtype = softmax.compute_dtype(lses[0].dtype)
    lse = ops.stack(
        [ops.cast(part, dtype) for part in lses]
    )  # [parts, B, n, H]
    highest = ops.amax(lse, axis=0)
    highest = ops.stop_gradient(
        ops.where(highest == -float("inf"), ops.zeros_like(highest), highest)
    )
    # An empty part is replaced before the exponential: its gradient would be
    # inf - inf, or inf * 0.
    empty = lse == -float("inf")
    weights = ops.exp(ops.where(empty, highest, lse) - highest)
    weights = ops.where(empty, ops.zeros_like(weights), weights)
    total = ops.sum(weights, axis=0)  # [B, n, H]
    nothing = total == 0
    safe_total = ops.where(nothing, ops.ones_like(total), total)
    shares = ops.unstack(weights / safe_total, axis=0)
    output = gated_sum(
        [ops.cast(part, dtype) for part in outputs],
        [share[..., None] for share in shares],
    )
    output = ops.cast(output, outputs[0].dtype)
    if not return_lse:
        return output
    return output, ops.where(
        nothing, -float("inf"), highest + ops.log(safe_total)
    )


def with_sinks(output, lse, sinks, padding_mask=None):
    """Attention with sinks, of attention without.

    Args:
        output: `[B, n, H, E]`.
        lse: `[B, n, H]`, -inf where a row attends to nobody.
        sinks: `[H]`, or `None` for none.
        padding_mask: optional boolean `[B, n]`; padding has no sink.

    Returns:
        Both, with one more logit per head in the denominator.
    """
    if sinks is None:
        return output, lse
    sinks = ops.cast(sinks, lse.dtype)
    empty = lse == -float("inf")
    known = ops.where(empty, ops.zeros_like(lse), lse)
    total = ops.where(empty, sinks, ops.logaddexp(known, sinks))
    fraction = ops.where(empty, ops.zeros_like(lse), ops.exp(known - total))
    output = ops.cast(
        ops.cast(output, lse.dtype) * fraction[..., None], output.dtype
    )
    if padding_mask is not None:
        total = ops.where(padding_mask[:, :, None], total, -float("inf"))
    return output, total


def _check_pairs(name, values, partner_name, partners):
    if len(values) != len(partners) or not values:
        raise ValueError(
            f"`{name}` and `{partner_name}` are expected to be lists of the "
            f"same length, at least 1. Received: {len(values)} {name} and "
            f"{len(partners)} {partner_name}"
        )
