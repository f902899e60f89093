"""What `swap_attention` puts in, and what it leaves behind."""

import inspect

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa import hub
from keras_sa.hub.families import registry
from keras_sa.hub.seeds import layer_seeds
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

LENGTH = 12
SEED = 3
COVERING = {"pattern": Stochastic(2 * LENGTH)}
SMALL = {"pattern": Stochastic(4), "seed": SEED}
ALL_KINDS = (
    SlidingWindow(2 * LENGTH),
    Stochastic(2 * LENGTH),
    Stochastic(2 * LENGTH) + SlidingWindow(2 * LENGTH),
)


def inputs(lengths=(LENGTH, LENGTH - 4)):
    return models.prompts(lengths, LENGTH)


def real_difference(received, expected, lengths=(LENGTH, LENGTH - 4)):
    real = inputs(lengths)["padding_mask"]
    return np.abs(received - expected)[real].max()


def hidden_states(shape=(2, LENGTH, 16), seed=0):
    x = np.random.default_rng(seed).normal(size=shape)
    return ops.convert_to_tensor(x.astype("float32"))


def call(layer, x, **kwargs):
    """A layer's output as numpy; compiled, which is faster on JAX."""

    def compute(x):
        return keras.tree.flatten(layer(x, **kwargs))[0]

    return ops.convert_to_numpy(backend.compile(compute)(x))


# --- what is computed


@pytest.mark.parametrize(
    "name, pattern",
    [
        ("qwen3", SlidingWindow(3)),
        ("qwen3", SlidingWindow(3, dilation=2) | GlobalKeys(first=2)),
        ("qwen3", Stochastic(5)),
        ("gpt_oss", Stochastic(4, neighborhood="block")),
        ("gpt_oss", Stochastic(4) | SlidingWindow(2)),
        (
            "gpt_oss",
            SlidingWindow(2)
            | Stochastic(3)
            | GlobalKeys(first=1)
            | GlobalQueries(last=2),
        ),
    ],
    ids=str,
)
def test_each_layer_attends_to_its_pattern(name, pattern):
    """As KerasHub computes it when the pattern is handed over as a mask."""
    model = models.build(name)
    layers = model.backbone.transformer_layers
    x = hidden_states()
    padding_mask = inputs()["padding_mask"]
    real = {"decoder_padding_mask": ops.convert_to_tensor(padding_mask)}
    masks = [
        pattern.mask(
            LENGTH,
            is_causal=True,
            seed=seed,
            padding_mask=ops.convert_to_tensor(padding_mask),
        )
        for seed in layer_seeds(SEED, len(layers))
    ]
    if len(masks[0].shape) == 2:
        masks = [ops.repeat(mask[None], 2, axis=0) for mask in masks]
    expected = [
        call(layer, x, decoder_attention_mask=mask, **real)
        for layer, mask in zip(layers, masks)
    ]
    wide = [full_attention_layer(layer) for layer in layers]
    with hub.swap_attention(model, pattern, layers="all", seed=SEED):
        received = [call(layer, x, **real) for layer in layers]
    for index in range(len(layers)):
        if wide[index]:
            difference = np.abs(received[index] - expected[index])
            scale = np.abs(expected[index]).max()
            assert difference[padding_mask].max() < 2e-6 * scale, index


def full_attention_layer(layer):
    """Not one whose own window would cut the pattern's."""
    return getattr(layer, "sliding_window", None) is None


def test_layers_have_independent_seeds():
    model = models.build("llama")
    seeds = layer_seeds(SEED, len(model.backbone.transformer_layers))
    assert len(set(seeds)) == len(seeds)
    logits = []
    for seed in (1, 1, 2):
        with hub.swap_attention(model, Stochastic(4), seed=seed):
            logits.append(models.logits(model, inputs()))
    np.testing.assert_array_equal(logits[0], logits[1])
    assert real_difference(logits[0], logits[2]) > 1e-3


def test_the_seed_is_governed_by_keras():
    model = models.build("llama")
    seeds = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        with hub.swap_attention(model, Stochastic(4)) as swap:
            seeds.append(swap.seed)
    with hub.swap_attention(model, Stochastic(4)) as swap:
        seeds.append(swap.seed)
    assert seeds[0] == seeds[1] != seeds[2]


# --- which layers


def test_global_leaves_layers_with_their_own_window_alone():
    model = models.build("gemma2")  # layer 0 has a window, layer 1 has none
    with hub.swap_attention(model, **SMALL) as swap:
        assert swap.layers == [1]
    with hub.swap_attention(model, **SMALL, layers="all") as swap:
        assert swap.layers == [0, 1]
    with hub.swap_attention(model, **SMALL, layers=[0]) as swap:
        assert swap.layers == [0]


def test_linear_attention_is_left_alone():
    model = models.build("qwen3_5")  # linear attention, then full attention
    with hub.swap_attention(model, **SMALL, layers="all") as swap:
        assert swap.layers == [1]
    with pytest.raises(ValueError, match=r"have attention: \[1\]"):
        hub.swap_attention(model, **SMALL, layers=[0])


def test_a_layer_keeps_its_permutation_whichever_others_are_swapped():
    model = models.build("llama")
    x = hidden_states()
    layer = model.backbone.transformer_layers[1]
    received = []
    for layers in ("all", [1]):
        with hub.swap_attention(model, **SMALL, layers=layers):
            received.append(call(layer, x))
    np.testing.assert_array_equal(*received)


# --- in and out


def everything_about(model):
    """What a swap could leave behind.

    But for `_torch_params`, where torch finds parameters: KerasHub leaves it
    empty, and a swap with gates has Keras fill it.
    """
    layers = list(model._flatten_layers())
    return (
        [type(layer) for layer in layers],
        [sorted({*vars(layer)} - {"_torch_params"}) for layer in layers],
        [v.path for v in model.variables],
        [id(v) for v in model.variables],
    )


@pytest.mark.parametrize(
    "pattern", [Stochastic(4), Stochastic(4) + SlidingWindow(4)], ids=str
)
def test_restore_leaves_nothing_behind(pattern):
    model = models.build("llama")
    models.logits(model, inputs())
    before = everything_about(model)
    swap = hub.swap_attention(model, pattern)
    assert hub.current_swap(model) is swap
    assert hub.current_swap(model.backbone) is swap
    assert everything_about(model) != before
    swap.restore()
    assert hub.current_swap(model) is None
    assert everything_about(model) == before
    swap.restore()  # once more changes nothing
    assert everything_about(model) == before


def test_weights_keep_their_paths_and_classes_their_names():
    model = models.build("llama")
    paths = [v.path for v in model.weights]
    names = [type(layer).__name__ for layer in model._flatten_layers()]
    with hub.swap_attention(model, **SMALL):
        assert [v.path for v in model.weights] == paths
        assert [
            type(layer).__name__ for layer in model._flatten_layers()
        ] == names
    with hub.swap_attention(model, Stochastic(4) + SlidingWindow(4)):
        assert [v.path for v in model.weights][: len(paths)] == paths


def test_full_is_the_model_itself():
    model = models.build("llama")
    expected = models.logits(model, inputs())
    hub.swap_attention(model, **SMALL)
    with hub.swap_attention(model, Full()) as swap:
        assert hub.current_swap(model) is swap
        assert (swap.patterns, swap.layers) == ({}, [])
        np.testing.assert_array_equal(models.logits(model, inputs()), expected)


def test_takes_effect_after_compilation():
    """After a first `predict`, `evaluate`, `fit` and `generate`."""
    model = models.build("llama")
    x = inputs()
    y = np.roll(x["token_ids"], -1, axis=1)
    prompts = models.prompts([5, 5], LENGTH)

    def run():
        tokens = model.generate(prompts, stop_token_ids=None)["token_ids"]
        return (
            model.predict(x, verbose=0),
            model.evaluate(x, y, verbose=0, return_dict=True)["loss"],
            tokens,
        )

    model.fit(x, y, verbose=0, shuffle=False)
    predictions, loss, tokens = run()
    with hub.swap_attention(model, **SMALL):
        others = run()
    assert np.abs(others[0] - predictions).max() > 1e-3
    assert abs(others[1] - loss) > 1e-5
    assert (others[2] != tokens).any()
    again = run()
    np.testing.assert_array_equal(again[0], predictions)
    np.testing.assert_array_equal(again[2], tokens)


# --- masks and shapes


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", ["llama", "gemma", "gpt2", "bloom"])
# KerasHub's own attention, of one token.
@pytest.mark.filterwarnings("ignore:.*softmax over axis -1:UserWarning")
def test_short_sequences(name, length):
    if name != "llama":
        models.skip_where_compiled("other families")
    model = models.build(name)
    x = models.prompts([length, 1], length)
    real = x["padding_mask"]
    expected = models.logits(model, x)
    for pattern in ALL_KINDS:
        with hub.swap_attention(model, pattern):
            received = models.logits(model, x)
        assert np.abs(received - expected)[real].max() < 1e-5, pattern


@pytest.mark.parametrize(
    "pattern",
    [
        SlidingWindow(4),
        Stochastic(4),
        Stochastic(4) | SlidingWindow(3) | GlobalKeys(first=1),
    ],
    ids=str,
)
def test_a_mask_of_the_callers(pattern):
    """Hides what it hides, beside what the pattern hides."""
    model = models.build("llama")
    layer = model.backbone.transformer_layers[0]
    x = hidden_states()
    mask = np.random.default_rng(1).random((2, LENGTH, LENGTH)) < 0.5
    mask |= np.eye(LENGTH, dtype=bool)
    expected = call(layer, x, decoder_attention_mask=mask)
    with hub.swap_attention(model, pattern | SlidingWindow(2 * LENGTH)):
        received = call(layer, x, decoder_attention_mask=mask)
    np.testing.assert_allclose(received, expected, atol=1e-5)
    seed = layer_seeds(SEED, 2)[0]
    allowed = mask & ops.convert_to_numpy(
        pattern.mask(LENGTH, is_causal=True, seed=seed)
    )
    expected = call(layer, x, decoder_attention_mask=allowed)
    with hub.swap_attention(model, pattern, seed=SEED):
        received = call(layer, x, decoder_attention_mask=mask)
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_block_routing_refuses_a_mask_of_the_callers():
    model = models.build("llama")
    layer = model.backbone.transformer_layers[0]
    mask = np.ones((2, LENGTH, LENGTH), bool)
    with hub.swap_attention(model, BlockRouted(4, 2)):
        with pytest.raises(ValueError, match="no mask.*Take another pattern"):
            layer(hidden_states(), decoder_attention_mask=mask)


def test_images_are_bidirectional():
    """Gemma 3 lets the tokens of an image attend to one another."""
    model = models.build("gemma3")
    layer = model.backbone.transformer_layers[5]  # a global one
    vision_mask = np.zeros((2, LENGTH), bool)
    vision_mask[:, 3:8] = True
    arguments = {
        "padding_mask": ops.ones((2, LENGTH), "int32"),
        "vision_mask": ops.convert_to_tensor(vision_mask),
    }
    x = hidden_states()
    expected = call(layer, x, **arguments)
    causal = call(layer, x, padding_mask=arguments["padding_mask"])
    assert np.abs(expected - causal).max() > 1e-3
    for pattern in ALL_KINDS:
        with hub.swap_attention(model, pattern):
            received = call(layer, x, **arguments)
        np.testing.assert_allclose(received, expected, atol=1e-5)


def test_embedding_models_are_bidirectional():
    model = models.build("gemma3", use_bidirectional_attention=True)
    expected = models.logits(model, inputs())
    for pattern in ALL_KINDS:
        with hub.swap_attention(model, pattern):
            received = models.logits(model, inputs())
        assert real_difference(received, expected) < 1e-5, pattern


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_causal_without_any_mask(name):
    """An attention that is called without a mask does not look ahead."""
    model = models.build(name)
    attention = model.backbone.transformer_layers[0]._self_attention_layer
    arguments = {} if name == "llama" else {"value": None}
    x = hidden_states()
    later = ops.concatenate([x[:, :-2], x[:, -2:] + 1.0], axis=1)

    def run(x):
        if "value" in arguments:
            return call(attention, x, value=x)
        return call(attention, x)

    with hub.swap_attention(model, **COVERING):
        before, after = run(x), run(later)
    np.testing.assert_array_equal(before[:, :-2], after[:, :-2])
    assert np.abs(before[:, -2:] - after[:, -2:]).max() > 1e-3


def test_serving_around_the_swap_is_refused():
    """KerasHub's route to vLLM calls none of the methods that are replaced."""
    model = models.build("llama")
    attention = model.backbone.transformer_layers[0]._self_attention_layer
    with hub.swap_attention(model, **SMALL):
        with pytest.raises(ValueError, match="can't be served through vLLM"):
            attention._compute_vllm_attention(hidden_states(), None, None)


def test_cross_attention_is_not_causal_decoding():
    layer = keras_hub.layers.TransformerDecoder(24, 4)
    x = hidden_states()
    layer(x)
    layer_model = _Decoders([layer])
    with hub.swap_attention(layer_model, **SMALL):
        with pytest.raises(ValueError, match="use_causal_mask=True"):
            layer(x, use_causal_mask=False)


class _Decoders(keras.Model):
    """A backbone of somebody's own."""

    def __init__(self, layers, hidden_dim=16):
        super().__init__()
        self.transformer_layers = layers
        self.hidden_dim = hidden_dim


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "float16"])
def test_half_precision(dtype):
    if dtype != "mixed_bfloat16":  # JAX has no float16 on CPUs
        models.skip_where_compiled("other dtypes")
    model = models.build("qwen3", dtype=dtype)
    expected = models.logits(model, inputs())
    for pattern in ALL_KINDS[1:]:
        with hub.swap_attention(model, pattern) as swap:
            received = models.logits(model, inputs())
            for gate in swap.gates:
                assert gate.compute_dtype == gate.variable_dtype == "float32"
        scale = np.abs(expected).max()
        assert real_difference(received, expected) < 0.05 * scale, pattern


@pytest.mark.parametrize("name", ["qwen_moe", "qwen3_moe", "mixtral"])
def test_the_auxiliary_loss_of_experts_is_the_models_own(name):
    """It reads the attention mask, to see which rows are padding."""
    model = models.build(name)
    lengths = (LENGTH, LENGTH)

    def losses():
        def compute(token_ids, padding_mask):
            model(
                {"token_ids": token_ids, "padding_mask": padding_mask},
                training=True,
            )
            return sum(model.losses)

        x = {k: ops.convert_to_tensor(v) for k, v in inputs(lengths).items()}
        return ops.convert_to_numpy(
            backend.compile(compute)(x["token_ids"], x["padding_mask"])
        )

    expected = losses()
    assert expected > 0
    with hub.swap_attention(model, **COVERING, layers="all", resample="never"):
        received = losses()
    assert received == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3", "gpt2", "phi3"])
@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_the_rows_that_attend_to_any_are_the_models_own(name, side):
    """What is left of the mask says so, to whoever reads it."""
    model = models.build(name)
    layer = model.backbone.transformer_layers[-1]
    family = registry.family_of(layer)
    padding_mask = inputs()["padding_mask"]
    if side == "left":
        padding_mask = padding_mask[:, ::-1].copy()
    if side == "none":
        padding_mask = None

    def rows():
        names = inspect.signature(getattr(layer, family.mask_method)).parameters
        arguments = dict.fromkeys(names)
        arguments[next(iter(names))] = hidden_states()
        for name in set(names) & {"decoder_padding_mask", "padding_mask"}:
            arguments[name] = padding_mask
        for name in set(names) & {"use_causal_mask", "cache_update_index"}:
            arguments[name] = name == "use_causal_mask"
        mask = getattr(layer, family.mask_method)(**arguments)
        return ops.convert_to_numpy(mask)

    expected = rows()
    with hub.swap_attention(model, **SMALL, layers="all"):
        received = rows()
    assert received.shape == (2, LENGTH, 2)
    expected = np.broadcast_to(expected, (2, LENGTH, LENGTH))
    np.testing.assert_array_equal(received.any(-1), expected.any(-1))


# --- randomness in training


def test_resampling_in_training():
    model = models.build("llama")
    x = {k: ops.convert_to_tensor(v) for k, v in inputs().items()}

    def run(training):
        return ops.convert_to_numpy(model(x, training=training))

    with hub.swap_attention(model, **SMALL):
        first, second = run(True), run(True)
        np.testing.assert_array_equal(run(False), run(False))
    assert real_difference(first, second) > 1e-3
    with hub.swap_attention(model, **SMALL, resample="never"):
        np.testing.assert_array_equal(run(True), run(False))


# --- families


def test_an_unknown_decoder_is_named():
    layer = models.build("llama").backbone.transformer_layers[0]

    class TunedDecoder(type(layer)):
        pass

    layer.__class__ = TunedDecoder
    model = _Decoders([layer])
    with pytest.raises(ValueError, match="'TunedDecoder'.*KerasHub 0"):
        hub.swap_attention(model, **SMALL)
    hub.register_family(hub.Family("TunedDecoder"))
    try:
        with hub.swap_attention(model, **SMALL, verify=False) as swap:
            assert swap.layers == [0]
            assert call(layer, hidden_states()).shape == (2, LENGTH, 16)
    finally:
        registry._FAMILIES.pop("TunedDecoder")


def test_encoders_are_refused():
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=32,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=16,
    )
    with pytest.raises(ValueError, match="'TransformerEncoder'"):
        hub.swap_attention(backbone, **SMALL)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of T5
def test_encoder_decoders_and_models_without_attention_are_refused():
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=32,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
    )
    for model in (backbone, keras.Sequential([keras.layers.Dense(2)])):
        with pytest.raises(ValueError, match="transformer_layers"):
            hub.swap_attention(model, **SMALL)


def test_decoders_with_cross_attention_are_refused():
    layer = keras_hub.layers.TransformerDecoder(24, 4)
    layer(hidden_states(), hidden_states())
    with pytest.raises(ValueError, match="cross-attention"):
        hub.swap_attention(_Decoders([layer]), **SMALL)


def test_an_unbuilt_model_is_refused():
    attention = keras.layers.MultiHeadAttention(2, 4)
    layer = keras_hub.layers.TransformerDecoder(24, 4)
    layer._self_attention_layer = attention
    layer._cross_attention_layer = None
    with pytest.raises(ValueError, match="expects a built model"):
        hub.swap_attention(_Decoders([layer]), **SMALL)


def test_a_family_that_changed_is_noticed():
    model = models.build("llama")
    known = registry._FAMILIES["LlamaTransformerDecoder"]
    hub.register_family(
        hub.Family("LlamaTransformerDecoder", mask_method="_renamed")
    )
    try:
        with pytest.raises(ValueError, match="'_renamed'.*KerasHub 0"):
            hub.swap_attention(model, **SMALL)
    finally:
        hub.register_family(known)


# --- bad input


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pattern": "stochastic"}, r"patterns\.Stochastic\(window_size\)"),
        ({"pattern": Stochastic}, "an instance, not the class"),
        ({"pattern": None}, "expected to be a pattern"),
        ({**SMALL, "decode": "fast"}, "`decode`"),
        ({**SMALL, "decode": "window"}, "`decode`"),
        ({**SMALL, "resample": "always"}, "`resample`"),
        ({**SMALL, "implementation": "fast"}, "`implementation`"),
        (
            {"pattern": BlockRouted(4, 2), "decode": "pattern"},
            "Take decode='full'",
        ),
        (
            {
                "pattern": SlidingWindow(4) | GlobalQueries(last=2),
                "decode": "pattern",
            },
            "decode='full'.*or leave the GlobalQueries out",
        ),
        (
            {
                "pattern": (Stochastic(2) | GlobalQueries(last=2))
                + SlidingWindow(4),
                "decode": "pattern",
            },
            "decode='full'.*or leave the GlobalQueries out",
        ),
        ({**SMALL, "layers": "some"}, "`layers`"),
        ({**SMALL, "layers": []}, "`layers`"),
        ({**SMALL, "layers": [0, 0]}, "`layers`"),
        ({**SMALL, "layers": 1}, "`layers`"),
        ({**SMALL, "layers": [9]}, "`layers`"),
        ({**SMALL, "layers": [True]}, "`layers`"),
        ({**SMALL, "layers": [np.True_]}, "`layers`"),
        ({**SMALL, "layers": [1.0]}, "`layers`"),
        ({**SMALL, "layers": ["1"]}, "`layers`"),
        ({**SMALL, "layers": None}, "`layers`"),
        ({**SMALL, "seed": 2**40}, "seed"),
        ({**SMALL, "seed": True}, "seed"),
        ({**SMALL, "gate_bias": 1.0}, "belongs to a gated sum"),
    ],
)
def test_bad_input(options, message):
    model = models.build("llama")
    before = everything_about(model)
    with pytest.raises(ValueError, match=message) as error:
        hub.swap_attention(model, **options)
    assert "Received: " in str(error.value)
    assert everything_about(model) == before


def test_a_model_with_only_sliding_layers_needs_all():
    model = models.build("mistral")
    with pytest.raises(ValueError, match="layers='all'"):
        hub.swap_attention(model, **SMALL)


def test_registering_something_else():
    with pytest.raises(ValueError, match="Received: family='Llama'"):
        hub.register_family("Llama")


def test_nine_parameters_are_enough():
    assert len(inspect.signature(hub.swap_attention).parameters) <= 9


def test_an_implementation_of_ones_choice():
    model = models.build("llama")
    expected = models.logits(model, inputs())
    for name in ("portable", "dense"):
        with hub.swap_attention(model, **COVERING, implementation=name):
            received = models.logits(model, inputs())
        assert real_difference(received, expected) < 1e-5
