"""Every family of decoders, under every kind of use.

Each test is marked with the column of docs/families.md that it stands for.
"""

import functools

import keras
import numpy as np
import pytest

from keras_sa import hub
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests import testing
from tests.hub import family_table
from tests.hub import models

LENGTH = 12
PROMPT_LENGTH = 7
# What covers everything: nothing may change. The first has several parts and
# their merging in it.
UNION = SlidingWindow(3) | Stochastic(2 * LENGTH) | GlobalKeys(first=2)
ROUTED = BlockRouted(LENGTH, 1)
COVERING = (
    UNION,
    SlidingWindow(LENGTH),
    Stochastic(LENGTH, neighborhood="block", permutation_per="head"),
    Stochastic(2 * LENGTH) + SlidingWindow(LENGTH),
    ROUTED,
)
GATED = {"pattern": Stochastic(4) + SlidingWindow(4), "seed": 3}
# Float32 over a few layers; KerasHub's own two ways to attend, fused and not,
# differ by as much.
ROUNDING = 5e-6
SMALL = {"pattern": Stochastic(4), "seed": 3}
# What `layers` has to be for the window to replace something.
LAYERS = {"mistral": "all", "mixtral": "all"}
# Where KerasHub's default names of layers for LoRA fit none.
LORA_LAYERS = {
    "smollm3": ["q_proj", "v_proj"],
    "gpt_neo_x": ["query_key_value"],
}
NOT_QUANTIZED = {
    "smollm3": "its rotary layers are not built",
    "bloom": "its ALiBi layers are not built",
}
# One of each kind, for what the backend has little part in: experts, sinks and
# windows; caps; biases for distances.
REPRESENTATIVE = ("gpt_oss", "gemma2", "bloom")

capability = pytest.mark.capability
families = pytest.mark.parametrize("name", models.FAMILIES)


def is_representative(name):
    return not testing.IS_COMPILED or name in REPRESENTATIVE


def representative(name):
    if not is_representative(name):
        models.skip_where_compiled("all families")


@functools.lru_cache(maxsize=1)
def vanilla(name):
    """A model that nobody changes, and its logits."""
    model = models.build(name)
    return model, models.logits(model, inputs())


def full_attention(name):
    """Changes that leave layers of linear attention out: with them, KerasHub's
    cached steps of Qwen3.5 differ from its own forward pass."""
    if name.startswith("qwen3_5"):
        return {"layer_types": ["full_attention", "full_attention"]}
    return {}


def inputs():
    return models.prompts([LENGTH, LENGTH - 4], LENGTH)


def generate(model, rows=2, max_length=LENGTH):
    prompts = models.prompts([PROMPT_LENGTH] * rows, max_length)
    return model.generate(prompts, stop_token_ids=None)["token_ids"]


def swap(model, name, pattern, **options):
    layers = LAYERS.get(name, "global")
    return hub.swap_attention(model, pattern, layers=layers, **options)


def largest_difference(logits, others):
    """Of real tokens, relative to the largest logit."""
    real = inputs()["padding_mask"]
    return np.abs(logits - others)[real].max() / np.abs(logits).max()


@families
@capability("training-free")
def test_windows_over_everything_change_nothing_and_small_ones_do(name):
    model, logits = vanilla(name)
    patterns = COVERING if name in REPRESENTATIVE else (UNION,)
    if not testing.IS_COMPILED:
        patterns = COVERING if name in REPRESENTATIVE else (UNION, ROUTED)
    for pattern in patterns:
        with swap(model, name, pattern):
            received = models.logits(model, inputs())
            assert largest_difference(logits, received) < ROUNDING, pattern
            if pattern is UNION and is_representative(name):
                tokens = generate(model)
    if is_representative(name):
        np.testing.assert_array_equal(generate(model), tokens)
    with swap(model, name, Stochastic(3), seed=3):
        received = models.logits(model, inputs())
    assert largest_difference(logits, received) > 1e-3
    np.testing.assert_array_equal(models.logits(model, inputs()), logits)


@families
@capability("training-free")
def test_a_prompt_generates_the_same_alone_and_with_more_room(name):
    representative(name)
    model, _ = vanilla(name)
    with hub.swap_attention(model, **SMALL, layers="all"):
        together = generate(model)
        alone = generate(model, rows=1, max_length=LENGTH + 5)
    np.testing.assert_array_equal(alone[0, :LENGTH], together[0])


@families
@capability("pattern decode")
def test_decoding_in_the_pattern_is_the_forward_pass(name):
    """Token for token: each generated one is the best by the forward pass."""
    representative(name)
    model = models.build(name, **full_attention(name))
    pattern = Stochastic(4, permutation_per="head") | SlidingWindow(2)
    with hub.swap_attention(
        model, pattern, seed=3, decode="pattern", layers="all"
    ):
        tokens = generate(model)
        everything = {
            "token_ids": tokens,
            "padding_mask": np.ones_like(tokens, bool),
        }
        best = models.logits(model, everything).argmax(-1)
    written = slice(PROMPT_LENGTH, None)
    before = slice(PROMPT_LENGTH - 1, -1)
    np.testing.assert_array_equal(tokens[:, written], best[:, before])


def train(model):
    """One step of training on random tokens; returns the loss."""
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=None,
        jit_compile=False,
        sampler="greedy",
    )
    x = dict(inputs())
    if "position_ids" in model.input:
        x["position_ids"] = np.tile(np.arange(LENGTH, dtype="int32"), (2, 1))
    history = model.fit(
        x,
        np.roll(x["token_ids"], -1, axis=1),
        sample_weight=x["padding_mask"].astype("float32"),
        batch_size=2,
        shuffle=False,
        verbose=0,
    )
    return history.history["loss"][0]


def changed(variables, before):
    return [
        v.path
        for v, value in zip(variables, before)
        if (keras.ops.convert_to_numpy(v) != value).any()
    ]


def values(variables):
    return [keras.ops.convert_to_numpy(v).copy() for v in variables]


@families
@capability("gates")
def test_only_the_gates_train(name):
    representative(name)
    model = models.build(name)
    handle = swap(model, name, **GATED)
    hub.train_only_gates(model)
    before = values(model.weights)
    assert np.isfinite(train(model))
    gates = {v.path for gate in handle.gates for v in gate.weights}
    assert set(changed(model.weights, before)) == gates


@families
@capability("LoRA")
def test_lora_and_gates_train(name):
    representative(name)
    model = models.build(name)
    handle = swap(model, name, **GATED)
    model.backbone.enable_lora(2, LORA_LAYERS.get(name))
    trainable = {v.path for v in model.trainable_variables}
    gates = {v.path for gate in handle.gates for v in gate.weights}
    assert gates < trainable
    adapted = ("lora_kernel_a", "lora_kernel_b", "bias")
    assert all(path.endswith(adapted) for path in trainable - gates)
    before = values(model.weights)
    assert np.isfinite(train(model))
    assert gates < set(changed(model.weights, before)) <= trainable


@families
@capability("int8")
# How Keras transposes a scale on torch.
@pytest.mark.filterwarnings("ignore:.*The use of `x.T`:UserWarning")
def test_swapping_a_quantized_model(name):
    representative(name)
    model = models.build(name)
    if name in NOT_QUANTIZED:
        pytest.skip(f"KerasHub 0.32 can't: {NOT_QUANTIZED[name]}")
    testing.quantize(model)
    logits = models.logits(model, inputs())
    for pattern in (UNION, Stochastic(2 * LENGTH) + SlidingWindow(LENGTH)):
        with swap(model, name, pattern):
            received = models.logits(model, inputs())
        assert largest_difference(logits, received) < ROUNDING


@families
@capability("save and load")
def test_save_and_load(name, tmp_path):
    representative(name)
    model = models.build(name)
    handle = swap(model, name, **GATED)
    for gate in handle.gates:
        gate.kernel.assign(keras.random.normal(gate.kernel.shape, seed=1))
    logits = models.logits(model, inputs())
    hub.save_to_preset(model, tmp_path)
    loaded = hub.from_preset(tmp_path)
    np.testing.assert_allclose(
        models.logits(loaded, inputs()), logits, atol=1e-6
    )
    plain = type(model).from_preset(str(tmp_path))
    handle.restore()
    np.testing.assert_allclose(
        models.logits(plain, inputs()),
        models.logits(model, inputs()),
        atol=1e-6,
    )


def test_the_table_in_the_docs_has_every_family():
    """docs/families.md, which family_table.py writes from these tests."""
    text = family_table.TABLE.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if " | " in line]
    columns = {
        mark.args[0]
        for value in globals().values()
        for mark in getattr(value, "pytestmark", [])
        if mark.name == "capability"
    }
    assert {column.strip(" |") for column in rows[0][1:]} == columns
    assert [row[0].strip("| ") for row in rows[1:]] == list(models.FAMILIES)
    for row in rows[1:]:
        name, cells = row[0].strip("| "), [c.strip(" |") for c in row[1:]]
        others = [c for c in cells if c != "yes"]
        assert bool(others) == (name in NOT_QUANTIZED), row
