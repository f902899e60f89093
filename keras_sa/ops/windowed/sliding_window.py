"""Attention to the neighbourhood in the text."""

import functools

from keras_sa import _validation
from keras_sa.ops.inputs import check_inputs
from keras_sa.ops.windowed import api
from keras_sa.ops.windowed import dilated
from keras_sa.patterns import window_reach


def sliding_window_attention(
    query,
    key,
    value,
    *,
    window_size,
    dilation=1,
    is_causal=False,
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
    """Attention where each token attends to a window of tokens around it.

    `window_size` counts the tokens in the window, the token itself included:
    positions `i - w + 1 .. i` if causal, else `i - w // 2 .. i + (w - 1) // 2`,
    cut at the ends. With a dilation `d` it holds every d-th token: causal `i`,
    `i - d`, ..., `w` of them. Time and memory are O(n w).

    Args:
        query: `[B, n, H, D]`, any float dtype.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        window_size: int >= 1, tokens in the window.
        dilation: int >= 1, the distance from a token of the window to the
            next.
        is_causal: whether a token attends to no later token.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. Nobody
            attends to padding, and its output is 0.
        attention_mask: optional `[B or 1, n, n]`, true or 1 where a row may
            attend to a column, in addition to the window. Only the entries
            within the window are read.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: optional `c`: scores become `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        return_lse: whether to return the log-sum-exp of the scores as well.
        dropout: rate of dropout on the attention weights.
        dropout_seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` for the best one for the backend, or a name:
            "portable"; "looped" on JAX; "sdpa" on torch with a CPU; "xla" on
            TensorFlow; "triton" on torch and JAX with an
            NVIDIA GPU; "flex" on torch (FlexAttention, by name only). A named
            one never falls back. docs/performance.md says when which is best.

    Returns:
        `[B, n, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, n, H]`, float32 at least. A row that attends to nothing has
        output 0 and log-sum-exp -inf (a real token with sinks: the sink).

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> keras_sa.ops.sliding_window_attention(
    ...     x, x, x, window_size=8, is_causal=True
    ... ).shape
    (2, 100, 4, 16)

    Reference:
        Longformer, https://arxiv.org/abs/2004.05150;
        Mistral 7B, https://arxiv.org/abs/2310.06825
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
    return attend_to_window(
        inputs,
        window_size=window_size,
        dilation=dilation,
        implementation=implementation,
    )


def attend_to_window(
    inputs,
    *,
    window_size,
    dilation=1,
    hidden_first=None,
    hidden_windows=(),
    implementation=None,
):
    """`sliding_window_attention` of checked `Inputs`.

    Args:
        hidden_first, hidden_windows: keys to hide, by original positions; see
            `api.WindowedArguments`.
    """
    window_size = _validation.check_positive_int("window_size", window_size)
    dilation = _validation.check_positive_int("dilation", dilation)
    attend = functools.partial(
        api.windowed_attention,
        permutation=None,
        reach=window_reach(window_size, inputs.is_causal),
        window_size=window_size,
        implementation=implementation,
    )
    if dilation > 1 and not inputs.is_empty:
        return dilated.attend_to_classes(
            attend, inputs, dilation, hidden_first, hidden_windows
        )
    return attend(
        inputs, hidden_first=hidden_first, hidden_windows=hidden_windows
    )
