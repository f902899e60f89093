"""What is particular to windows through torch's own attention; values and
gradients are tested with those of the others in `test_attention_cases.py`."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa import backend as kb
from keras_sa.ops import dispatch
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from keras_sa.ops.windowed import portable
from keras_sa.ops.windowed import sdpa
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="torch's own attention"
)
CASES = [
    case
    for case in testing.CASES
    # The gradient of a window of one key is nothing but rounding.
    if testing.objection(case, "sdpa") is None and case.window > 1
]
LENGTH, WINDOW, HEADS, DIM = 1024, 64, 8, 4


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_chunks(case, queries, monkeypatch):
    monkeypatch.setattr(sdpa, "_FEWEST_QUERIES", queries)
    monkeypatch.setattr(sdpa, "_MOST_QUERIES", queries)
    testing.assert_case(case, "sdpa", "float32")


@pytest.mark.parametrize("step", [1, 3])
def test_several_steps(step, monkeypatch):
    """Of one and of three chunks, with orders of their own."""
    from keras_sa.ops.windowed.sdpa import torch as sdpa_ops

    monkeypatch.setattr(sdpa, "_MOST_QUERIES", 4)
    monkeypatch.setattr(sdpa, "_FEWEST_QUERIES", 4)
    monkeypatch.setattr(sdpa_ops, "KEY_BYTES", step * 12 * 8 * 4)
    rng = np.random.default_rng(0)
    order = np.stack([rng.permutation(50) for _ in range(4)])
    order = order.reshape(2, 2, 50).astype("int32")
    tensors = [
        ops.convert_to_tensor(rng.normal(size=(2, 50, heads, 8)), "float32")
        for heads in (4, 2, 2)
    ]

    def run(implementation):
        def loss(*tensors):
            output, lse = stochastic_attention(
                *tensors,
                order,
                window_size=9,
                is_causal=True,
                return_lse=True,
                implementation=implementation,
            )
            return ops.sum(output**3) + ops.sum(lse**2)

        return kb.value_and_gradients(loss)(*tensors)

    for received, expected in zip(
        keras.tree.flatten(run("sdpa")), keras.tree.flatten(run("portable"))
    ):
        np.testing.assert_allclose(
            received.detach(), expected.detach(), rtol=1e-4, atol=1e-4
        )


class Sizes:
    """The most elements of a tensor that torch's operators return."""

    def __init__(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        sizes = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result = function(*args, **kwargs or {})
                sizes.see(result)
                return result

        self.mode, self.largest = Mode(), 0

    def see(self, result):
        import torch

        if isinstance(result, (tuple, list)):
            for item in result:
                self.see(item)
        elif isinstance(result, torch.Tensor):
            # A view holds what it views.
            held = result.untyped_storage().nbytes() // result.element_size()
            self.largest = max(self.largest, held)


def largest(implementation, backward):
    import torch

    order = np.random.default_rng(0).permutation(LENGTH).astype("int32")
    tensors = [
        torch.randn(1, LENGTH, HEADS, DIM, requires_grad=backward)
        for _ in range(3)
    ]
    sizes = Sizes()
    with sizes.mode:
        output = stochastic_attention(
            *tensors,
            order,
            window_size=WINDOW,
            is_causal=True,
            implementation=implementation,
        )
        if backward:
            output.square().sum().backward()
    return sizes.largest


@pytest.mark.parametrize("backward", [False, True])
def test_no_scores_of_all_heads(backward, monkeypatch):
    """The bias is shared by the heads; scores are not there."""
    from keras_sa.ops.windowed.sdpa import torch as sdpa_ops

    monkeypatch.setattr(sdpa_ops, "KEY_BYTES", 2**17)
    assert largest("sdpa", backward) <= 1.1 * LENGTH * WINDOW * 1.25
    assert largest("portable", backward) >= LENGTH * WINDOW * 1.5 * HEADS


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dropout": 0.1, "dropout_seed": 0}, "dropout"),
        ({"attn_logits_soft_cap": 2.0}, "attn_logits_soft_cap"),
        ({"return_lse": True}, "return_lse in half precision"),
        ({"sinks": [0.0, 1.0]}, "sinks"),
    ],
)
def test_refusals(arguments, words):
    x = ops.ones((1, 8, 2, 4), "bfloat16")

    def attend(implementation):
        return sliding_window_attention(
            x, x, x, window_size=4, implementation=implementation, **arguments
        )

    with pytest.raises(
        ValueError, match=f"(?s)`sdpa` has no {words}.*Received"
    ):
        attend("sdpa")
    attend(None)


def test_it_is_the_default_but_in_programs(monkeypatch):
    import torch

    seen = []
    choose = dispatch.choose
    monkeypatch.setattr(
        dispatch, "choose", lambda *x: seen.append(choose(*x)) or seen[-1]
    )
    x = torch.ones(1, 8, 2, 4)

    def attend(x):
        return sliding_window_attention(x, x, x, window_size=4)

    expected = attend(x)
    assert seen == [sdpa]
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert seen == [sdpa] or seen[-1] is portable


def derivatives(neighborhood, implementation=None):
    """What `torch.func` makes of a function, by name."""
    from torch import func

    rng = np.random.default_rng(0)
    order = ops.convert_to_tensor(rng.permutation(40), "int32")
    x = ops.convert_to_tensor(rng.normal(size=(2, 40, 2, 4)), "float32")

    def attend(x):
        return stochastic_attention(
            x,
            x,
            x,
            order,
            window_size=8,
            neighborhood=neighborhood,
            is_causal=True,
            implementation=implementation,
        )

    def loss(x):
        return ops.sum(attend(x) ** 3)

    batch = ops.stack([x, x + 1])
    return {
        "gradient": lambda: func.grad(loss)(x),
        "forward mode": lambda: func.jvp(attend, (x,), (x,))[1],
        "of a batch": lambda: func.vmap(attend)(batch),
        "gradient of a batch": lambda: func.vmap(func.grad(loss))(batch),
        "gradient of a gradient": lambda: func.grad(
            lambda x: ops.sum(func.grad(loss)(x) ** 2)
        )(x),
    }


@pytest.mark.parametrize("neighborhood", ["window", "block"])
def test_transformations(neighborhood):
    import torch

    received = derivatives(neighborhood)
    expected = derivatives(neighborhood, "portable")
    for name, derive in received.items():
        torch.testing.assert_close(
            derive(), expected[name](), rtol=1e-4, atol=1e-4, msg=name
        )


@pytest.mark.parametrize("return_lse", [False, True])
def test_second_gradients(return_lse):
    import torch

    rng = np.random.default_rng(0)
    order = ops.convert_to_tensor(rng.permutation(40), "int32")
    mask = torch.arange(40)[None] < torch.tensor([[40], [30]])
    tensors = [
        ops.convert_to_tensor(rng.normal(size=(2, 40, 2, 4)), "float64")
        for _ in range(3)
    ]
    tensors = [x.requires_grad_() for x in tensors]

    def run(implementation):
        output = stochastic_attention(
            *tensors,
            order,
            window_size=8,
            is_causal=True,
            padding_mask=mask,
            return_lse=return_lse,
            implementation=implementation,
        )
        loss = 0
        if return_lse:
            output, lse = output
            loss = torch.where(mask[:, :, None], lse, 0).square().sum()
        loss = loss + output.pow(3).sum()
        gradients = torch.autograd.grad(loss, tensors, create_graph=True)
        length = sum(x.square().sum() for x in gradients)
        return *gradients, *torch.autograd.grad(length, tensors)

    for received, expected in zip(run("sdpa"), run("portable")):
        torch.testing.assert_close(received, expected, rtol=1e-4, atol=1e-4)


# Orders whose gradient gathers.


@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 3, 7)])
@pytest.mark.parametrize("extra", [0, 2])
def test_gradients_of_orders_gather(shape, extra):
    import torch

    from keras_sa.ops import ordering
    from keras_sa.patterns import permutation as permutations

    rng = np.random.default_rng(0)
    order = np.stack(
        [rng.permutation(7) for _ in range(int(np.prod(shape[:-1])))]
    ).reshape(shape)
    order = np.pad(
        order, [(0, 0)] * (len(shape) - 1) + [(0, extra)], constant_values=7
    )
    order = ops.convert_to_tensor(order, "int32")
    inverse = permutations.invert_permutation(order)[..., :7]
    x = torch.randn(2, 7, 3, 4, requires_grad=True)
    weights = torch.randn(2, 7, 3, 4)

    def there_and_back(fast):
        rows = ordering.permute_heads(
            x, ops.minimum(order, 6), inverse if fast else None
        )
        back = ordering.unpermute_heads(
            rows * rows, inverse, 2, 3, order if fast else None
        )
        (gradient,) = torch.autograd.grad((back * weights).sum(), x)
        return back, gradient

    for received, expected in zip(there_and_back(True), there_and_back(False)):
        torch.testing.assert_close(received, expected)
    torch.testing.assert_close(there_and_back(True)[0], x * x)
