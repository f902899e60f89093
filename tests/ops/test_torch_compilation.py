"""`torch.compile` over texts of many lengths."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="torch.compile is torch's"
)


def attend(kind, x, order, padding_mask):
    if kind == "sliding":
        return sliding_window_attention(
            x, x, x, window_size=8, is_causal=True, padding_mask=padding_mask
        )
    return stochastic_attention(
        x,
        x,
        x,
        order,
        window_size=8,
        neighborhood=kind,
        is_causal=True,
        padding_mask=padding_mask,
    )


@pytest.mark.parametrize("kind", ["sliding", "window", "block"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_few_compilations_for_many_lengths(kind, is_padded):
    """The first length, and then once or twice for any: whether chunks come
    out even is a matter of its own."""
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    rng = np.random.default_rng(0)
    for length in (40, 50, 64, 99, 100, 72, 120):
        x = torch.randn(2, length, 2, 4)
        order = ops.convert_to_tensor(rng.permutation(length), "int32")
        mask = torch.arange(length)[None] < torch.tensor([[length], [30]])
        arguments = (kind, x, order, mask if is_padded else None)
        torch.testing.assert_close(
            compiled(*arguments), attend(*arguments), rtol=1e-4, atol=1e-5
        )
    assert counter.frame_count <= 3
