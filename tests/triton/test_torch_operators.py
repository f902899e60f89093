"""The Triton kernels as operators of torch."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from keras_sa.ops.neighbors import api as neighbors_api
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="operators of torch"
)


def make_tensors(requires_grad=False, dtype="float32"):
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 40, 4, 16), (2, 40, 2, 16), (2, 40, 2, 24))
    return [
        torch.randn(shape, generator=generator)
        .to(getattr(torch, dtype))
        .requires_grad_(requires_grad)
        for shape in shapes
    ]


def make_order(examples=2, heads=2, length=40):
    import torch

    rng = np.random.default_rng(0)
    order = np.broadcast_to(np.arange(length), (examples, heads, length))
    order = rng.permuted(order, axis=-1).astype("int32")
    assert not order.flags.c_contiguous
    return torch.from_numpy(order)  # no padding: opcheck compares NaNs of -inf


@pytest.mark.parametrize("kind", ["sliding", "stochastic", "everything"])
def test_operator_keeps_its_contract(kind):
    import torch

    from keras_sa.triton import torch as torch_triton_ops

    settings = {
        "sliding": (7, 0, 0, True, -1, -1, 0.3, 0.0),
        "stochastic": (4, 3, 0, True, -1, -1, 0.3, 0.0),
        "everything": (0, 0, 8, False, 2, 2, 0.3, 5.0),
    }[kind]
    order = None if kind == "sliding" else make_order()
    sinks = None
    if kind == "everything":
        sinks = torch.zeros(4, requires_grad=True)
    arguments = (*make_tensors(True), order, sinks, *settings)
    torch.library.opcheck(torch_triton_ops.windowed_attention, arguments)


def test_the_operator_of_a_step_keeps_its_contract():
    import torch

    from keras_sa.triton import torch as torch_triton_ops

    query, key, value = make_tensors()
    rows = torch.arange(18, dtype=torch.int32).reshape(2, 9) - 2
    arguments = (query[:, :2].contiguous(), key, value, rows, None, 0.3, 0.0)
    torch.library.opcheck(torch_triton_ops.neighbor_attention, arguments)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_graph_break(backend):
    import torch

    def loss(query, key, value, order):
        output = keras_sa.ops.stochastic_attention(
            query,
            key,
            value,
            order,
            window_size=8,
            is_causal=True,
            implementation="triton",
        )
        return output.square().sum()

    order = keras_sa.ops.sample_permutation(40, seed=1)
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    results = []
    for function in (loss, compiled):
        tensors = make_tensors(True)
        value = function(*tensors, order)
        value.backward()
        results.append([value, *(x.grad for x in tensors)])
    for plain, traced in zip(*results):
        torch.testing.assert_close(plain, traced)


def test_one_compilation_serves_every_permutation_and_mask():
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def attend(query, key, value, order, mask):
        return keras_sa.ops.stochastic_attention(
            query,
            key,
            value,
            order,
            window_size=8,
            padding_mask=mask,
            implementation="triton",
        )

    tensors = make_tensors()
    outputs = []
    for seed in (1, 2, 3):
        order = keras_sa.ops.sample_permutation(40, seed=seed)
        mask = torch.arange(40)[None] < torch.tensor([[40 - seed], [30]])
        outputs.append(attend(*tensors, order, mask))
    assert counter.frame_count == 1
    assert not torch.allclose(outputs[0], outputs[1])


def test_layers_use_it_unless_flash_attention_is_disabled():
    layer = keras_sa.SmallWorldAttention(
        num_heads=4, key_dim=16, window_size=8, num_key_value_heads=2, seed=3
    )
    x = keras.random.normal((2, 40, 32), seed=1)
    fused = layer(x, x, use_causal_mask=True)
    keras.config.disable_flash_attention()
    try:
        portable = layer(x, x, use_causal_mask=True)
    finally:
        keras.config.enable_flash_attention()
    difference = ops.convert_to_numpy(ops.abs(fused - portable))
    assert 0 < difference.max() < 1e-5


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_padding_may_hold_anything(poison):
    """In the inputs and in what comes back to the output."""
    import torch

    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0, 30:] = False
    order = keras_sa.ops.sample_permutation(40, seed=1)
    results = []
    for filler in (0.0, poison):
        tensors = [
            x.masked_fill(~mask[..., None, None], filler).requires_grad_()
            for x in make_tensors()
        ]
        output = keras_sa.ops.stochastic_attention(
            *tensors,
            order,
            window_size=8,
            padding_mask=mask,
            implementation="triton",
        )
        upstream = torch.ones_like(output)
        upstream = upstream.masked_fill(~mask[..., None, None], filler)
        results.append(
            [output, *torch.autograd.grad(output, tensors, upstream)]
        )
    for clean, poisoned in zip(*results):
        torch.testing.assert_close(clean, poisoned, rtol=0, atol=0)


def test_no_second_derivative():
    import torch

    query, key, value = make_tensors(True)
    output = keras_sa.ops.sliding_window_attention(
        query, key, value, window_size=8, implementation="triton"
    )
    (gradient,) = torch.autograd.grad(
        output.square().sum(), query, create_graph=True
    )
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.autograd.grad(gradient.sum(), query)


@pytest.mark.parametrize("batch, length", [(0, 40), (2, 0)])
def test_nothing_to_do(batch, length):
    import torch

    x = torch.zeros(batch, length, 2, 16, requires_grad=True)
    output = keras_sa.ops.sliding_window_attention(
        x, x, x, window_size=8, implementation="triton"
    )
    output.sum().backward()
    assert output.shape == x.grad.shape == x.shape


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"attention_mask": np.ones((1, 40, 40), bool)}, "attention_mask"),
        ({"dropout": 0.1, "dropout_seed": 1}, "dropout"),
    ],
)
def test_refusals(arguments, words):
    tensors = make_tensors()
    with pytest.raises(ValueError, match=f"(?s){words}.*Received"):
        keras_sa.ops.sliding_window_attention(
            *tensors, window_size=8, implementation="triton", **arguments
        )


def test_refused_dtypes_and_dims():
    import torch

    query, key, value = make_tensors(dtype="float64")
    with pytest.raises(ValueError, match="(?s)float64.*Received"):
        keras_sa.ops.sliding_window_attention(
            query, key, value, window_size=8, implementation="triton"
        )
    x = torch.zeros(1, 4, 1, 300)
    with pytest.raises(ValueError, match="(?s)head dims above 256.*Received"):
        keras_sa.ops.sliding_window_attention(
            x, x, x, window_size=8, implementation="triton"
        )


STEPS = {
    "grouped": dict(heads=8, kv_heads=2, dim=64, rows=100, neighbors=70),
    "two_tokens_odd_dims": dict(
        heads=4, kv_heads=1, dim=24, value_dim=40, rows=50, neighbors=37, new=2
    ),
    "large_group": dict(heads=32, kv_heads=1, dim=16, rows=64, neighbors=9),
    "no_groups": dict(heads=4, kv_heads=4, dim=16, rows=20, neighbors=33),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scoring", ["plain", "cap_and_sinks"])
@pytest.mark.parametrize("step", STEPS)
def test_step_of_decoding(step, scoring, dtype):
    result, exact = run_step(STEPS[step], scoring, dtype)
    bound = 2 * testing.EPSILON[dtype] * max(1, np.abs(exact).max())
    assert np.abs(result - exact).max() <= 4 * bound
    assert np.abs(exact).max() > 0.1


def run_step(shape, scoring, dtype, batch=2):
    """The kernel's output, and that of `portable` in float64."""
    import torch

    generator = torch.Generator().manual_seed(0)
    new = shape.get("new", 1)
    dim, value_dim = shape["dim"], shape.get("value_dim", shape["dim"])

    def draw(*sizes):
        return torch.randn(sizes, generator=generator).to(getattr(torch, dtype))

    query = draw(batch, new, shape["heads"], dim)
    # Parts of larger caches: their examples are not one after the other.
    key = draw(batch, 2, shape["rows"], shape["kv_heads"], dim)[:, 1]
    value = draw(batch, 2, shape["rows"], shape["kv_heads"], value_dim)[:, 1]
    rows = torch.randint(
        -1, shape["rows"], (new, shape["neighbors"]), generator=generator
    )
    rows[0, : shape["neighbors"] // 3] = -1
    scores = {"scale": dim**-0.5}
    if scoring == "cap_and_sinks":
        scores |= {"attn_logits_soft_cap": 2.0, "sinks": draw(shape["heads"])}

    def run(implementation, convert):
        scoring = {
            name: convert(x) if torch.is_tensor(x) else x
            for name, x in scores.items()
        }
        return neighbors_api.neighbor_attention(
            convert(query),
            convert(key),
            convert(value),
            rows.int(),
            implementation=implementation,
            **scoring,
        )

    result = run("triton", lambda x: x)
    assert result.dtype == value.dtype
    exact = run("portable", torch.Tensor.double)
    return result.double().numpy(), exact.numpy()


def test_a_step_that_sees_nothing_is_zero():
    import torch

    query, key, value = make_tensors()
    rows = torch.full((1, 5), -1, dtype=torch.int32)
    output = neighbors_api.neighbor_attention(
        query[:, :1], key, value, rows, scale=1.0, implementation="triton"
    )
    assert (output == 0).all()


def test_a_step_has_no_gradients_and_says_so():
    import torch

    query, key, value = make_tensors(True)
    rows = torch.arange(5, dtype=torch.int32)[None]
    arguments = (query[:, :1], key, value, rows)
    with pytest.raises(ValueError, match="(?s)no gradients.*Received"):
        neighbors_api.neighbor_attention(
            *arguments, scale=1.0, implementation="triton"
        )
    neighbors_api.neighbor_attention(*arguments, scale=1.0).sum().backward()
    assert query.grad is not None
