"""FlexAttention: its mask, its tiles, its gradients, what it refuses.

Compiled on a CPU it has no gradients and no log-sum-exp. Uncompiled it has
both, by n x n scores: so those are tested here on short sequences.
"""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from keras_sa.ops.windowed import common
from keras_sa.ops.windowed import flex as our_flex
from keras_sa.patterns import SlidingWindow
from tests import testing

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="FlexAttention is torch's"
)
WINDOWED = [c for c in testing.CASES if c.op != "block_routed_attention"]
# More slots than a tile has, and head dims that a GPU takes.
LONG = testing.Case(
    "long", batch=2, length=300, head_dim=16, value_dim=24, window=40
)


def long(dtype, **changes):
    name = "-".join(map(str, changes.values()))
    return pytest.param(dataclasses.replace(LONG, **changes), dtype, id=name)


@pytest.fixture
def uncompiled(monkeypatch):
    """FlexAttention in eager mode, which has gradients on a CPU too."""
    from torch.nn.attention import flex_attention as flex

    from keras_sa.ops.windowed.flex import torch as flex_ops

    monkeypatch.setattr(our_flex, "_why_not_on", lambda *arguments: None)
    monkeypatch.setattr(flex_ops, "_on_cpu", flex.flex_attention)
    monkeypatch.setattr(flex_ops, "_on_gpu", flex.flex_attention)
    # It refuses gradients on a CPU because they cannot be compiled there.
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def many_compilations():
    """A session compiles more shapes than Dynamo keeps by default."""
    import torch

    with torch._dynamo.config.patch(recompile_limit=64):
        yield


def to_numpy(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def tensors_of(case, dtype="float32"):
    inputs = testing.make_inputs(case, dtype)
    arrays = (inputs.query, inputs.key, inputs.value)
    return [ops.convert_to_tensor(x, dtype) for x in arrays]


def run(case, dtype="float32", **arguments):
    import torch

    inputs = testing.make_inputs(case, dtype)
    arguments = {"implementation": "flex", **arguments}
    with torch.no_grad():
        return testing.run_op(
            case, inputs, *tensors_of(case, dtype), **arguments
        )


@pytest.mark.parametrize("case", WINDOWED, ids=str)
@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_value_and_gradients(uncompiled, case, dtype):
    testing.assert_case(case, "flex", dtype)


def slowly(dtype, **changes):
    case = long(dtype, **changes)
    return pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "case, dtype",
    [
        long("float32", window=150, padding="right", is_causal=True),
        long("bfloat16", permutation="per_example", attn_logits_soft_cap=2.0),
        slowly("bfloat16", window=150, padding="right", is_causal=True),
        slowly("float32", permutation="per_head", padding="empty"),
        slowly(
            "float32",
            permutation="per_head_shared",
            exclude_local=9,
            is_causal=True,
            neighborhood="block",
            window=100,
        ),
        slowly(
            "bfloat16",
            permutation="shared",
            attention_mask="per_example",
            kv_heads=4,
        ),
    ],
)
def test_compiled_over_many_tiles(many_compilations, case, dtype):
    inputs = testing.make_inputs(case, dtype)
    exact, single = testing.references(case, dtype, with_lse=False)
    testing.assert_close(
        "output",
        to_numpy(run(case, dtype)),
        exact.output,
        single.output,
        dtype,
        max(np.abs(x).max() for x in inputs.differentiable.values()),
    )


def test_gradients_on_a_gpu(many_compilations):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    case = dataclasses.replace(
        LONG,
        permutation="per_head",
        padding="empty",
        sinks=True,
        is_causal=True,
    )
    for dtype in testing.DTYPES:
        testing.assert_case(case, "flex", dtype)


def test_one_compilation_serves_all_permutations(many_compilations):
    import torch

    case = testing.Case("small", length=130, permutation="per_example")
    run(case)
    for seed in range(3):
        order = testing.make_inputs(case, seed=seed).permutation
        with torch._dynamo.config.patch(error_on_recompile=True):
            with torch.no_grad():
                output, expected = (
                    keras_sa.ops.stochastic_attention(
                        *tensors_of(case),
                        order,
                        window_size=case.window,
                        implementation=implementation,
                    )
                    for implementation in ("flex", "portable")
                )
        np.testing.assert_allclose(
            to_numpy(output), to_numpy(expected), atol=2e-6
        )


def test_a_compilation_too_many_is_an_error():
    """And not n x n scores."""
    import torch

    error = torch._dynamo.exc.FailOnRecompileLimitHit
    with torch._dynamo.config.patch(recompile_limit=1):
        with pytest.raises(error):
            for length in (3, 4):
                run(testing.Case("short", length=length))


# Keras caches its type promotion, of which Dynamo warns.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.parametrize("padding", ["none", "right"])
def test_no_graph_break(padding):
    import torch

    case = testing.Case("graph", permutation="per_head", padding=padding)
    inputs = testing.make_inputs(case)
    order = ops.convert_to_tensor(inputs.permutation)
    mask = inputs.padding_mask
    mask = mask if mask is None else ops.convert_to_tensor(mask)

    def attend(order, mask, *tensors):
        return keras_sa.ops.stochastic_attention(
            *tensors,
            order,
            window_size=case.window,
            padding_mask=mask,
            implementation="flex",
        )

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        output = compiled(order, mask, *tensors_of(case))
    expected = run(case, implementation="portable")
    np.testing.assert_allclose(to_numpy(output), to_numpy(expected), atol=2e-6)


def block_mask_of(case):
    """The `BlockMask` of a case and the order of its slots."""
    from keras_sa.ops.windowed.flex import torch as flex_ops

    inputs = testing.make_inputs(case)
    caught = []

    def catch(arguments):
        order = common.order_of(arguments)
        window = flex_ops.window_of(arguments)
        mask = flex_ops.block_mask(
            window,
            order,
            None,
            arguments.hidden_first,
            arguments.query.device,
        )
        caught.append((mask, order))
        return arguments.query

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(our_flex, "forward", catch)
        testing.run_op(case, inputs, *tensors_of(case), implementation="flex")
    return caught[0]


MASKED = [
    dataclasses.replace(LONG, **changes)
    for changes in (
        {"is_causal": True},
        {"window": 900},
        {"window": 1, "length": 128},
        {"permutation": "shared", "window": 129, "length": 257},
        {"permutation": "per_head", "padding": "ragged", "is_causal": True},
        {"permutation": "shared", "neighborhood": "block", "window": 50},
        {"permutation": "shared", "neighborhood": "block", "window": 200},
        {
            "permutation": "per_example",
            "neighborhood": "block",
            "padding": "right",
            "exclude_local": 5,
        },
    )
]


def every_pair(mask, case):
    """Boolean numpy `[B, H, n, n]` over slots: the pairs a mask shows."""
    from torch.nn.attention import flex_attention as flex

    length = case.length
    shown = flex.create_mask(
        mask.mask_mod,
        case.batch,
        case.heads,
        length,
        length,
        device=mask.kv_indices.device,
    )
    return ops.convert_to_numpy(shown)


@pytest.mark.parametrize("case", MASKED, ids=repr)
def test_the_mask_is_that_of_the_patterns(case):
    mask, order = block_mask_of(case)
    shown = every_pair(mask, case)
    expected = testing.oracle_mask(case, testing.make_inputs(case))
    if case.permutation != "identity":
        tokens = ops.convert_to_numpy(ops.where(order < 0, -1 - order, order))
        tokens = np.repeat(tokens, case.heads // tokens.shape[1], axis=1)
        tokens = np.broadcast_to(tokens, shown.shape[:3])
        expected = np.take_along_axis(expected, tokens[..., None], axis=2)
        expected = np.take_along_axis(expected, tokens[:, :, None], axis=3)
    np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize("case", MASKED, ids=repr)
def test_the_tiles_are_those_with_pairs(case):
    """All of them, and no more than the pattern needs, from both sides."""
    from torch.nn.attention import flex_attention as flex

    mask, _ = block_mask_of(case)
    if case.neighborhood == "block":
        slot = np.arange(case.length) // case.window
        pairs = slot[:, None] == slot[None, :]
    else:
        pairs = ops.convert_to_numpy(
            SlidingWindow(case.window).mask(
                case.length,
                is_causal=case.is_causal and case.permutation == "identity",
            )
        )
    tile = mask.BLOCK_SIZE[0]
    edges = np.arange(0, case.length, tile)
    pairs = np.logical_or.reduceat(pairs, edges, axis=0)
    pairs = np.logical_or.reduceat(pairs, edges, axis=1)
    for counts, indices, expected in (
        (mask.kv_num_blocks, mask.kv_indices, pairs),
        (mask.q_num_blocks, mask.q_indices, pairs.T),
    ):
        visited = flex._ordered_to_dense(counts, indices, len(edges))[0, 0]
        np.testing.assert_array_equal(to_numpy(visited), expected)


@pytest.mark.parametrize("neighborhood", ["window", "block"])
def test_no_square(neighborhood):
    """What the mask holds grows with the length, not with its square."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from keras_sa.ops.windowed.flex import torch as flex_ops

    held = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                held.append(result.untyped_storage().nbytes())
            return result

    for length in (4096, 2**20):
        window = flex_ops.Window(
            length=length,
            group=2,
            left=100,
            right=100,
            block_size=200 if neighborhood == "block" else 0,
            is_causal=True,
            hidden_windows=(),
        )
        order = torch.arange(length, dtype=torch.int32)[None, None]
        held.clear()
        with Record():
            flex_ops.block_mask(window, order, None, None, order.device)
        assert held and max(held) <= length


def test_never_the_default(monkeypatch):
    def fail(arguments):
        raise AssertionError("flex is for those who ask for it")

    monkeypatch.setattr(our_flex, "forward", fail)
    for case in WINDOWED:
        run(case, implementation=None)
    assert not our_flex.by_default(None)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"dropout": 0.1}, "no dropout"),
        ({"return_lse": True}, "no log-sum-exp on CPUs"),
        ({"sinks": np.zeros(4, "float32")}, "no log-sum-exp on CPUs"),
    ],
)
def test_it_says_what_it_has_not(arguments, reason):
    import torch

    if "CPU" in reason and torch.cuda.is_available():
        pytest.skip("it has, on a GPU")
    with pytest.raises(ValueError, match=f"`flex` has {reason}"):
        run(testing.Case("refused"), **arguments)


def test_it_says_that_it_has_no_gradients_on_cpus(many_compilations):
    import torch

    if torch.cuda.is_available():
        pytest.skip("it has, on a GPU")
    x = torch.ones((1, 8, 2, 16), requires_grad=True)
    with pytest.raises(ValueError, match="`flex` has no gradients on CPUs"):
        keras_sa.ops.sliding_window_attention(
            x, x, x, window_size=3, implementation="flex"
        )
    with torch.no_grad():
        keras_sa.ops.sliding_window_attention(
            x, x, x, window_size=3, implementation="flex"
        )


def test_it_says_that_it_has_no_float64():
    x = ops.ones((1, 8, 2, 16), "float64")
    with pytest.raises(ValueError, match="`flex` has no float64"):
        keras_sa.ops.sliding_window_attention(
            x, x, x, window_size=3, implementation="flex"
        )


def test_padding_may_hold_anything(uncompiled):
    case = dataclasses.replace(
        LONG, length=20, padding="ragged", permutation="shared", window=6
    )
    inputs = testing.make_inputs(case)
    real = inputs.padding_mask[:, :, None, None]
    arrays = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    spoiled = {k: np.where(real, x, np.inf) for k, x in arrays.items()}
    results = [
        testing.run_with_gradients(
            lambda **tensors: testing.run_op(
                case, inputs, implementation="flex", **tensors
            ),
            dataclasses.replace(inputs, **changed),
            "float32",
            with_lse=False,
        )
        for changed in ({}, spoiled)
    ]
    np.testing.assert_array_equal(results[0].output, results[1].output)
    for name, gradient in results[0].gradients.items():
        np.testing.assert_array_equal(gradient, results[1].gradients[name])
