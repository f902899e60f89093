"""Attention to the neighbourhood in the text."""

from keras_sa import _validation
from keras_sa.ops import patterns
from keras_sa.ops.windowed import api


def sliding_window_attention(
    query,
    key,
    value,
    *,
    window_size,
    causal=False,
    padding_mask=None,
    attention_mask=None,
    scale=None,
    logit_soft_cap=None,
    sinks=None,
    return_lse=False,
    dropout=0.0,
    seed=None,
    implementation=None,
):
    """Attention where each token sees a window of tokens around it.

    `window_size` counts the tokens in the window, the token itself included:
    positions `i - w + 1 .. i` if causal, else `i - w // 2 .. i + (w - 1) // 2`,
    cut at the ends. Time and memory are O(n w).

    Args:
        query: `[B, n, H, D]`, any float dtype.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        window_size: int >= 1, tokens in the window.
        causal: whether a token sees no later token.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. Padding is
            seen by nobody, and its output is 0.
        attention_mask: optional `[B or 1, n, n]`, true or 1 where a row may
            see a column, in addition to the window. Only the entries within
            the window are read.
        scale: factor on the scores; default `1 / sqrt(D)`.
        logit_soft_cap: optional `c`: scores become `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator.
        return_lse: whether to return the log-sum-exp of the scores as well.
        dropout: rate of dropout on the attention weights.
        seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` for the best one for the backend, or a name:
            "portable"; "looped" on JAX; "sdpa" on torch with a CPU; "xla" on
            TensorFlow; "triton" on torch and JAX with an
            NVIDIA GPU; "flex" on torch (FlexAttention, by name only). A named
            one never falls back. docs/performance.md says when which is best.

    Returns:
        `[B, n, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, n, H]`, float32 at least. A row that sees nothing has output 0
        and log-sum-exp -inf (a real token with sinks: the sink).

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> import keras
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> keras_sa.ops.sliding_window_attention(
    ...     x, x, x, window_size=8, causal=True
    ... ).shape
    (2, 100, 4, 16)

    Reference:
        Longformer, https://arxiv.org/abs/2004.05150;
        Mistral 7B, https://arxiv.org/abs/2310.06825
    """
    window_size = _validation.check_positive_int("window_size", window_size)
    return api.windowed_attention(
        query,
        key,
        value,
        None,
        reach=patterns.window_reach(window_size, causal),
        window_size=window_size,
        neighborhood="window",
        causal=causal,
        padding_mask=padding_mask,
        attention_mask=attention_mask,
        exclude_local=None,
        scale=scale,
        logit_soft_cap=logit_soft_cap,
        sinks=sinks,
        return_lse=return_lse,
        dropout=dropout,
        seed=seed,
        implementation=implementation,
    )
