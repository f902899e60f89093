"""Measured weights are what the model multiplies its values with."""

import contextlib
import inspect
import weakref

import numpy as np
import pytest
from keras import ops

from keras_sa import hub
from keras_sa import ops as sa_ops
from keras_sa.hub._patching import override_methods
from keras_sa.hub._patching import restore_methods
from keras_sa.hub.families import registry
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing
from tests.hub import models

LENGTHS = (11, 7)
GATED = {"pattern": Stochastic(4) + SlidingWindow(4), "seed": 3}
UNION = {"pattern": Stochastic(4) | SlidingWindow(4), "seed": 3}
CASES = {
    "qwen3": ("qwen3", None),
    "gemma2": ("gemma2", None),  # soft cap, and a window in one layer
    "gpt_oss": ("gpt_oss", None),  # sinks, and a window in one layer
    "gpt2": ("gpt2", None),
    "gates": ("qwen3", GATED),
    "softmax": ("gpt_oss", UNION),
}
ON_ALL_BACKENDS = ("gemma2", "gpt_oss", "gates")


def inputs():
    return models.prompts(LENGTHS, LENGTHS[0])


def families_and_attentions(model):
    for decoder in model.backbone.transformer_layers:
        family = registry.family_of(decoder)
        yield family, family.find_attention(decoder)


def arrays(model):
    return hub.measure_attention(model, inputs(), lambda weights: weights)


@contextlib.contextmanager
def recording(model):
    """A list for each layer of its calls: arguments by name, and output."""
    attentions = [attention for _, attention in families_and_attentions(model)]
    records = [[] for _ in attentions]
    for attention, calls in zip(attentions, records):
        override_methods(attention, _recorder(attention, calls))
    try:
        yield records
    finally:
        for attention in attentions:
            restore_methods(attention)


def _recorder(attention, calls):
    original = type(attention)._compute_attention
    signature = inspect.signature(original)

    def compute_attention(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs).arguments
        query, key, value = list(bound.values())[1:4]
        before = ops.copy(query), key, value  # Gemma changes its query
        output = original(self, *args, **kwargs)
        calls.append((before, output))
        return output

    compute_attention.__signature__ = signature
    return {"_compute_attention": compute_attention}


def as_numpy(x):
    return ops.convert_to_numpy(x[0] if isinstance(x, tuple) else x)


@pytest.mark.parametrize("case", CASES)
def test_weights_times_values_are_what_the_model_computes(case):
    if case not in ON_ALL_BACKENDS:
        models.skip_where_compiled("another family")
    name, options = CASES[case]
    model = models.build(name)
    real = inputs()["padding_mask"]
    with contextlib.ExitStack() as stack:
        if options is not None:
            swap = hub.swap_attention(model, **options, layers="all")
            stack.enter_context(swap)
        records = stack.enter_context(recording(model))
        measured = arrays(model)
    for weights, calls in zip(measured, records, strict=True):
        (_, _, value), output = calls[-1]  # after those that measure
        value = as_numpy(value)
        value = np.repeat(value, weights.shape[1] // value.shape[2], axis=2)
        received = np.einsum("bhij,bjhd->bihd", weights, value)
        assert weights.dtype == np.float32
        assert np.all(weights >= 0)
        assert not np.any(np.triu(weights, 1))
        assert not weights[1, :, LENGTHS[1] :].any()
        assert not weights[1, :, :, LENGTHS[1] :].any()
        np.testing.assert_allclose(
            received[real], as_numpy(output)[real], atol=2e-5
        )


@pytest.mark.parametrize("case", ["qwen3", "gemma2", "gpt_oss"])
def test_weights_are_the_softmax_that_the_family_describes(case):
    """Computed anew from queries, keys and masks."""
    models.skip_where_compiled("another family")
    model = models.build(case)
    with recording(model) as records:
        measured = arrays(model)
    real = inputs()["padding_mask"]
    stack = hub.attention_patterns(model)
    layers = families_and_attentions(model)
    for (family, attention), weights, calls, pattern in zip(
        layers, measured, records, stack
    ):
        _, expected = sa_ops.dense_attention(
            *calls[-1][0],
            pattern.mask(LENGTHS[0])
            & ops.convert_to_tensor(real)[:, None, None],
            scale=family.scale(attention),
            attn_logits_soft_cap=family.logit_soft_cap(attention),
            sinks=family.sinks(attention),
            return_weights=True,
        )
        expected = as_numpy(expected) * real[:, None, :, None]
        np.testing.assert_allclose(weights, expected, atol=1e-5)


@pytest.mark.parametrize("options", [None, GATED], ids=["native", "gates"])
@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_weights_with_alibi(name, options):
    """The output of a whole attention layer, made of its weights."""
    if (name, options) != ("bloom", None):
        models.skip_where_compiled("another family")
    model = models.build(name)
    if options is not None:
        hub.swap_attention(model, **options)
    weights, *_ = arrays(model)
    (family, attention), *_ = families_and_attentions(model)
    x, expected = first_call(model, attention)
    *_, project_value, project_output = (
        getattr(attention, name) for name in family.projections
    )
    value = as_numpy(project_value(x))
    mixed = np.einsum("bhij,bjhd->bihd", weights, value)
    received = project_output(mixed.reshape(*mixed.shape[:2], -1))
    real = inputs()["padding_mask"]
    np.testing.assert_allclose(
        as_numpy(received)[real], as_numpy(expected)[real], atol=2e-5
    )


def first_call(model, attention):
    """What an attention layer is called on, and what it returns."""
    original = type(attention).call
    signature = inspect.signature(original)
    seen = []

    def call(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        seen.append((signature.bind(self, *args, **kwargs).args[1], output))
        return output

    call.__signature__ = signature
    override_methods(attention, {"call": call})
    try:
        model.backbone(
            {name: ops.convert_to_tensor(x) for name, x in inputs().items()}
        )
    finally:
        restore_methods(attention)
    return seen[0]


def test_rows_sum_to_one_or_to_the_gates_or_less_with_sinks():
    model = models.build("gpt_oss")
    real = inputs()["padding_mask"][:, None, :]  # [B, 1, n]
    sums = [weights.sum(axis=-1) for weights in arrays(model)]
    for total in sums:
        assert np.all(total <= 1 + 1e-5)
        assert 0.1 < total[np.broadcast_to(real, total.shape)].mean() < 0.95
    models.skip_where_compiled("another family")
    model = models.build("llama")
    for total in (weights.sum(axis=-1) for weights in arrays(model)):
        np.testing.assert_allclose(total, real * np.ones((1, 4, 1)), atol=1e-5)
    swap = hub.swap_attention(model, **GATED, gate_bias=(0.0, 1.0))
    gates = 0.5 + 1 / (1 + np.exp(-1))
    assert all(not np.any(gate.kernel) for gate in swap.gates)
    for total in (weights.sum(axis=-1) for weights in arrays(model)):
        expected = gates * real * np.ones((1, 4, 1))
        np.testing.assert_allclose(total, expected, atol=1e-5)


def test_the_model_is_left_as_it_was():
    models.skip_where_compiled("the same code")
    model = models.build("llama")
    hub.swap_attention(model, **GATED)
    before = models.logits(model, inputs())
    classes = [
        type(attention) for _, attention in families_and_attentions(model)
    ]
    arrays(model)
    with pytest.raises(ZeroDivisionError):
        hub.measure_attention(model, inputs(), lambda weights: 1 / 0)
    assert classes == [
        type(attention) for _, attention in families_and_attentions(model)
    ]
    np.testing.assert_array_equal(models.logits(model, inputs()), before)


def test_one_layer_at_a_time():
    models.skip_where_compiled("the same code")
    model = models.build("llama", num_layers=3)
    alive = []

    def measure(weights):
        assert not any(reference() is not None for reference in alive)
        alive.append(weakref.ref(weights))
        return len(alive)

    assert hub.measure_attention(model, inputs(), measure) == [1, 2, 3]


def test_nothing_is_kept_for_gradients():
    models.skip_where_compiled("PyTorch keeps it")
    model = models.build("llama")
    with recording(model) as records:
        arrays(model)
    assert not any(x.requires_grad for calls in records for _, x in calls)


def test_half_precision():
    models.skip_where_compiled("the same code")
    model = models.build("qwen3", dtype="bfloat16")
    real = inputs()["padding_mask"]
    for weights in arrays(model):
        assert weights.dtype == np.float32
        totals = weights.sum(axis=-1).transpose(0, 2, 1)[real]
        np.testing.assert_allclose(totals, 1, atol=2e-2)


def test_int8_layers_of_alibi():
    models.skip_where_compiled("the same code")
    model = models.build("falcon")
    expected = arrays(model)
    testing.quantize(model)
    for weights, other in zip(arrays(model), expected):
        np.testing.assert_allclose(
            weights.sum(axis=-1), other.sum(axis=-1), atol=1e-5
        )
        assert 0 < np.abs(weights - other).max() < 0.3


def test_layers_without_attention_have_no_weights():
    models.skip_where_compiled("another family")
    model = models.build("qwen3_5")
    assert hub.layers_with_attention(model) == [1]
    assert len(arrays(model)) == 1


def test_only_decoders_have_weights():
    with pytest.raises(ValueError, match="`model` is expected"):
        hub.measure_attention("llama", inputs(), np.sum)
