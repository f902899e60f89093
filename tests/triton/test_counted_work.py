"""The benchmark's count of products is what the kernels do."""

import pathlib
import sys

import keras
import pytest

sys.path.append(
    str(pathlib.Path(__file__).resolve().parents[2] / "examples/benchmarks")
)

import gpu_work

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="one backend is enough"
)
PROBLEMS = {
    "window": {},
    "all_pairs_grouped": {"is_causal": False, "num_key_value_heads": 2},
    "blocks": {"left": 0, "right": 0, "block_size": 70},
    "sliding": {"left": 40, "right": 0, "order_shape": None},
}


@pytest.fixture
def products(monkeypatch):
    """The floating-point operations of every product from now on."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    original, found = builder.create_dot, []

    def create_dot(self, a, b, *others):
        rows, inner = a.data.shape
        found.append(2 * rows * inner * b.data.shape[1])
        return original(self, a, b, *others)

    monkeypatch.setattr(builder, "create_dot", create_dot)
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_products(name, products):
    import torch

    from keras_sa.triton import torch as torch_triton_ops

    length, heads, dim = 150, 4, 24
    settings = {"num_heads": heads, "num_key_value_heads": heads}
    settings |= {"itemsize": 4, "batch_size": 2, "capability": 80}
    settings |= PROBLEMS[name]
    problem = gpu_work.make_problem(length, dim, window=30, **settings)
    kv_heads = problem.num_key_value_heads
    query, key, value = (
        torch.randn(2, length, h, dim, requires_grad=True)
        for h in (heads, kv_heads, kv_heads)
    )
    order = None
    if problem.order_shape is not None:
        order = torch.arange(length, dtype=torch.int32)[None, None]
    output, _ = torch_triton_ops.windowed_attention(
        *(query, key, value, order, None, problem.left, problem.right),
        *(problem.block_size, problem.is_causal, -1, -1, problem.scale, 0.0),
    )
    work = gpu_work.count_work(problem)
    assert sum(products) == work["forward"].flops
    products.clear()
    output.sum().backward()
    assert sum(products) == work["backward"].flops
