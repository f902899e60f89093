"""The largest few of a row on torch."""

import torch

from keras_sa.ops import torch_tracing

# `torch.topk` on a CPU looks at a row as if to sort it unless the row is this
# many times longer than what is wanted.
_PARTIAL = 64


def top_k(x, k):
    """Values and indices `[..., k]` of the largest of a row, in order."""
    is_slow = x.device.type == "cpu" and not torch_tracing.is_tracing()
    # One maximum after the other is faster for a few.
    if not is_slow or k > 4 or _PARTIAL * k <= x.shape[-1]:
        return torch.topk(x, k)
    results, rest = [], x
    for _ in range(k):
        results.append(rest.max(-1, keepdim=True))
        rest = rest.scatter(-1, results[-1].indices, -float("inf"))
    values, indices = zip(*results)
    return torch.cat(values, -1), torch.cat(indices, -1)
