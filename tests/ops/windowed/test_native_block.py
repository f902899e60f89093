"""Blocks through torch's own attention: no copies, and calls of a size that
the kernels of a GPU can count."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="torch's own attention"
)
BLOCKS = [
    case
    for case in testing.CASES
    if testing.objection(case, "native_block") is None
]


@pytest.fixture
def torch_sdpa():
    from keras_sa.ops.windowed.native_block import torch as torch_sdpa

    return torch_sdpa


@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_several_calls_are_one(torch_sdpa, monkeypatch, case):
    monkeypatch.setattr(torch_sdpa, "most_blocks", lambda query: 2)
    testing.assert_case(case, "native_block", "float32")


@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_repeated_heads_are_groups(torch_sdpa, monkeypatch, case):
    monkeypatch.setattr(torch_sdpa, "_reads_groups", lambda *arguments: False)
    testing.assert_case(case, "native_block", "float32")


@pytest.mark.parametrize(
    "shape, most",
    [
        ((10, 16, 1, 16), 2**16 - 1),  # the grid
        ((10, 128, 32, 128), 2**12 - 1),  # offsets in the gradient
        ((10, 100, 32, 72), 2**12 - 1),  # as padded
        ((10, 2**16, 64, 256), 1),  # at least one, whatever it is
    ],
)
def test_the_most_blocks_of_a_call(torch_sdpa, shape, most):
    import torch

    assert torch_sdpa.most_blocks(torch.empty(shape, device="meta")) == most
    cpu = torch.empty((10, 1, 1, 1), device="cpu")  # which has no grid
    assert torch_sdpa.most_blocks(cpu) is None


def test_no_copies(torch_sdpa, monkeypatch):
    import torch

    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def record(query, key, value, **arguments):
        seen.extend((query, key, value))
        return attend(query, key, value, **arguments)

    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", record
    )
    shapes = [(6, 16, 8, 4), (6, 16, 2, 4), (6, 16, 2, 4)]
    tensors = [keras.random.normal(x, dtype="bfloat16") for x in shapes]
    torch_sdpa.attend(*tensors, None, scale=0.5, is_causal=True)
    for given, taken in zip(tensors, seen):
        assert given.data_ptr() == taken.data_ptr()
        assert taken.shape == given.transpose(1, 2).shape


@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_a_row_that_sees_nothing_is_finite(torch_sdpa, dtype):
    random = np.random.default_rng(0)
    query, key, value = (
        ops.convert_to_tensor(random.normal(size=(2, 4, 2, 8)), dtype)
        for _ in range(3)
    )
    visible = ops.convert_to_tensor([[True] * 4, [False] * 4])
    for x in (query, key, value):
        x.requires_grad_()
    output = torch_sdpa.attend(
        query, key, value, visible[:, None, None], scale=1.0, is_causal=False
    )
    output.sum().backward()
    for x in (output, query.grad, key.grad, value.grad):
        assert bool(ops.all(ops.isfinite(x)))
