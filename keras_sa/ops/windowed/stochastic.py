"""Attention to a random sample of the whole sequence, at a window's cost."""

from keras_sa import _validation
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.windowed import api
from keras_sa.patterns import permutation as permutations
from keras_sa.patterns import window_reach


def stochastic_attention(
    query,
    key,
    value,
    permutation,
    *,
    window_size,
    neighborhood="window",
    is_causal=False,
    exclude_local=None,
    hidden_first=None,
    padding_mask=None,
    attention_mask=None,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    return_lse=False,
    dropout=0.0,
    dropout_seed=None,
    implementation=None,
):
    """Permutes the tokens, attends in a window of slots, restores the order.

    A window over a random order is a random sample of the sequence: about
    `w / n` of all pairs attend to each other, near or far, at the cost of a
    sliding window. Layers that draw independent permutations reach the whole
    sequence in O(log_w n) layers.

    Args:
        query: `[B, n, H, D]`, any float dtype; position encodings (rotary)
            are applied before and are not moved.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        permutation: integers `[n]`, `[B, n]` or `[B or 1, K, n]`: the original
            position of the token in each slot, as from `sample_permutation`.
        window_size: int >= 1: slots in a window, the token's own included.
        neighborhood: `"window"`: the slots `p - w // 2 .. p + (w - 1) // 2`;
            `"block"`: slots are cut in disjoint blocks of `w`, and a token
            attends to its block.
        is_causal: whether a token attends to no later token, by original
            position. About half of a window of slots is then hidden: a token
            attends to `(w + 1) / 2` keys in the mean.
        exclude_local: optional int: hides what a sliding window of this size
            shows, so that both can be merged in one softmax.
        hidden_first: optional int or integers `[B]`: hides the keys at an
            original position below it. Those tokens attend to others all the
            same.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. Padding
            moves to the last slots, nobody attends to it, and its output is 0.
            For results that do not depend on the padding's place, draw the
            permutation with the same mask.
        attention_mask: optional `[B or 1, n, n]` in original positions, true
            or 1 where a row may attend to a column, in addition to the window.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: optional `c`: scores become `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        return_lse: whether to return the log-sum-exp of the scores as well.
        dropout: rate of dropout on the attention weights.
        dropout_seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` for the best one for the backend, or a name:
            "portable", "native_block"; "looped" on JAX; "sdpa" on torch with
            a CPU; "xla" on TensorFlow; "triton" on torch and JAX with an
            NVIDIA GPU; "flex" on torch (FlexAttention, by name only). A named
            one never falls back. docs/performance.md says when which is best.

    Returns:
        `[B, n, H, E]` in the original order and the dtype of `value`; with
        `return_lse` also `[B, n, H]`, float32 at least. A row that
        attends to nothing has output 0 and log-sum-exp -inf (a real token
        with sinks: the sink).

    Raises:
        ValueError: if a shape, dtype or argument is not as above, or if a
            `permutation` in host memory does not hold every position once.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> order = keras_sa.ops.sample_permutation(100, seed=1)
    >>> keras_sa.ops.stochastic_attention(
    ...     x, x, x, order, window_size=8, is_causal=True
    ... ).shape
    (2, 100, 4, 16)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    inputs = check_inputs(
        query,
        key,
        value,
        is_causal=is_causal,
        padding_mask=padding_mask,
        attention_mask=attention_mask,
        scale=scale,
        attn_logits_soft_cap=attn_logits_soft_cap,
        sinks=sinks,
        return_lse=return_lse,
        dropout=dropout,
        dropout_seed=dropout_seed,
    )
    return attend_in_order(
        inputs,
        check_order(inputs, permutation),
        window_size=window_size,
        neighborhood=neighborhood,
        exclude_local=exclude_local,
        hidden_first=hidden_first,
        implementation=implementation,
    )


def check_order(inputs, permutation):
    """A permutation that is one, as far as its values are known; int32, with
    padding last."""
    permutation = _validation.check_permutation(
        permutation, *inputs.query.shape[:2], inputs.key.shape[2]
    )
    if inputs.padding_mask is None:
        return permutation
    return permutations.padding_last(permutation, inputs.padding_mask)


def attend_in_order(
    inputs,
    permutation,
    *,
    window_size,
    neighborhood="window",
    exclude_local=None,
    hidden_first=None,
    hidden_windows=(),
    implementation=None,
):
    """`stochastic_attention` of checked `Inputs`, for a permutation that is
    known to be one, with padding last; no look at its values.

    Args:
        hidden_windows: more windows to hide; see `api.WindowedArguments`.
    """
    window_size = _validation.check_positive_int("window_size", window_size)
    if exclude_local is not None:
        local = _validation.check_positive_int("exclude_local", exclude_local)
        reach = window_reach(local, inputs.is_causal)
        hidden_windows = ((*reach, 1), *hidden_windows)
    return api.windowed_attention(
        inputs,
        permutation,
        reach=window_reach(window_size, is_causal=False),
        window_size=window_size,
        neighborhood=neighborhood,
        hidden_first=hidden_first,
        hidden_windows=hidden_windows,
        implementation=implementation,
    )
