"""Overlapping views of chunks and the attention to them, in torch.

Letters: `N` sequences, `n` slots, `H` query heads, `K` key/value heads, `D`
head dim, `E` value head dim, `F` the larger one, `c` slots in a chunk, `t`
chunks, `S` keys of a chunk.
"""

import torch

from keras_sa.ops.windowed import torch_sdpa


def attend(query, key, value, visible, chunks, *, scale):
    """Attention of chunks to their neighbours.

    Args:
        query: `[N, n, H, D]`.
        key: `[N, n, K, D]`.
        value: `[N, n, K, E]`.
        visible: boolean `[N or 1, t, c, S]`.
        chunks: `portable.Chunks`.
        scale: factor on the scores.

    Returns:
        `[N, n, H, E]`.
    """
    length, num_chunks = query.shape[1], visible.shape[1]
    # The fused kernel takes equal head dims. Zeros add nothing.
    value_dim = value.shape[3]
    features = max(query.shape[3], value_dim)
    bias = torch_sdpa.bias_of(visible[:, :, None], query.dtype)
    bias = bias.expand(query.shape[0], *bias.shape[1:]).unbind()
    missing = num_chunks * chunks.size - length
    wider = features - query.shape[3]
    if missing or wider:  # torch would copy for nothing
        query = torch.nn.functional.pad(query, (0, wider, 0, 0, 0, missing))
    query = query.unflatten(1, (num_chunks, chunks.size)).unbind()
    key, value = (
        [
            Overlapping.apply(x, num_chunks, chunks, features)
            for x in tensor.unbind()
        ]
        for tensor in (key, value)
    )
    outputs = [
        torch_sdpa.attend_with_bias(*tensors, scale=scale)
        for tensors in zip(query, key, value, bias)
    ]
    output = torch.stack(outputs) if len(outputs) > 1 else outputs[0][None]
    return output.flatten(1, 2)[:, :length, :, :value_dim]


class Overlapping(torch.autograd.Function):
    """`[n, K, D]` as chunks beside their neighbours `[t, S, K, F]`: a view of
    one padded copy. torch's own gradient of such a view takes far longer."""

    @staticmethod
    def forward(x, num_chunks, chunks, features):
        front = chunks.before * chunks.size
        back = (num_chunks + chunks.after) * chunks.size - x.shape[0]
        wider = features - x.shape[2]
        x = torch.nn.functional.pad(x, (0, wider, 0, 0, front, back))
        row, head, feature = x.stride()
        shape = (num_chunks, chunks.keys, *x.shape[1:])
        return x.as_strided(shape, (chunks.size * row, row, head, feature))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _, ctx.chunks, _ = inputs
        ctx.length, _, ctx.head_dim = x.shape

    @staticmethod
    def backward(ctx, gradient):
        chunks = ctx.chunks
        parts = gradient.unflatten(1, (-1, chunks.size)).unbind(1)
        total = parts[chunks.before].contiguous()  # [t, c, K, D]
        for place, part in enumerate(parts):
            ahead = place - chunks.before  # chunks from the queries' own
            if ahead < 0:
                total[:ahead] += part[-ahead:]
            elif ahead > 0:
                total[ahead:] += part[:-ahead]
        total = total.flatten(0, 1)[: ctx.length, :, : ctx.head_dim]
        return total, None, None, None
