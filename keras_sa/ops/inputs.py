"""What every attention is given besides its pattern, checked once.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_sa import _validation
from keras_sa.ops import softmax


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Checked arguments that all attentions have in common.

    Attributes:
        query: `[B, n, H, D]`.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        is_causal: whether a token attends to no later original position.
        padding_mask: boolean `[B, n]` or `None`.
        attention_mask: boolean `[B or 1, n, n]` or `None`.
        scale: factor on the scores.
        attn_logits_soft_cap: `c` of `c * tanh(score / c)`, or `None`.
        sinks: `[H]` or `None`.
        return_lse: whether the log-sum-exp is wanted.
        dropout: rate on the attention weights.
        dropout_seed: `SeedGenerator` or int for the dropout.
    """

    query: Any
    key: Any
    value: Any
    is_causal: bool = False
    padding_mask: Any = None
    attention_mask: Any = None
    scale: Any = None
    attn_logits_soft_cap: Any = None
    sinks: Any = None
    return_lse: bool = False
    dropout: float = 0.0
    dropout_seed: Any = None

    @property
    def is_empty(self):
        """Whether there is no token to attend, as far as sizes are known."""
        return 0 in self.query.shape[:2]


def check_inputs(
    query,
    key,
    value,
    *,
    is_causal=False,
    padding_mask=None,
    attention_mask=None,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    return_lse=False,
    dropout=0.0,
    dropout_seed=None,
):
    """The arguments as `Inputs`, whose attributes they are.

    Args:
        scale: default `1 / sqrt(D)`.

    Raises:
        ValueError: if a shape, dtype or number is not as it should be.
    """
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    _validation.check_qkv(query, key, value)
    batch_size, length, num_heads, head_dim = query.shape
    return Inputs(
        query=query,
        key=key,
        value=value,
        is_causal=bool(is_causal),
        padding_mask=_validation.check_padding_mask(
            padding_mask, batch_size, length
        ),
        attention_mask=_validation.check_attention_mask(
            attention_mask, batch_size, length
        ),
        scale=(
            head_dim**-0.5
            if scale is None
            else _validation.check_number("scale", scale)
        ),
        attn_logits_soft_cap=_validation.check_number(
            "attn_logits_soft_cap", attn_logits_soft_cap
        ),
        sinks=_validation.check_sinks(sinks, num_heads),
        return_lse=bool(return_lse),
        dropout=_validation.check_rate("dropout", dropout),
        dropout_seed=dropout_seed,
    )


def empty_attention(inputs):
    """What an attention of no tokens returns; it has gradients."""
    i = inputs
    batch_size, length, num_heads = ops.shape(i.query)[:3]
    tensors = (i.query, i.key, i.value, i.sinks)
    shape = (batch_size, length, num_heads)
    output = zeros_of(tensors, (*shape, i.value.shape[3]), i.value.dtype)
    if not i.return_lse:
        return output
    return output, zeros_of(
        tensors, shape, softmax.compute_dtype(i.query.dtype)
    )


def zeros_of(tensors, shape, dtype):
    """Zeros that have a gradient, of zero, for tensors or `None`."""
    nothing = [ops.sum(x[:0]) for x in tensors if x is not None]
    return ops.zeros(shape, dtype) + sum(ops.cast(x, dtype) for x in nothing)
