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
from keras_sa.ops import patterns
from keras_sa.patterns import permutation as permutations
from tests.hub import models

LENGTH = 12
SEED = 3
COVERING = {"mode": "stochastic", "window_size": 2 * LENGTH}
SMALL = {"mode": "stochastic", "window_size": 4, "seed": SEED}


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


def pattern_masks(model, options, padding_mask):
    """Boolean `[B, n, n]` for each layer: the written meaning of a swap."""
    length = padding_mask.shape[1]
    local = patterns.sliding_window_mask(
        length, options.get("local_window_size", options["window_size"]), True
    )
    for seed in layer_seeds(SEED, len(model.backbone.transformer_layers)):
        order = permutations.sample_permutation(length, seed, padding_mask)
        stochastic = patterns.stochastic_mask(
            order,
            options["window_size"],
            options.get("neighborhood", "window"),
            causal=True,
        )
        mask = {
            "sliding_window": ops.broadcast_to(local, (2, length, length)),
            "stochastic": stochastic,
            "small_world": ops.logical_or(local, stochastic),
        }[options["mode"]]
        yield ops.convert_to_numpy(mask)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sliding_window", "window_size": 3},
        {"mode": "stochastic", "window_size": 5},
        {"mode": "stochastic", "window_size": 4, "neighborhood": "block"},
        {
            "mode": "small_world",
            "window_size": 4,
            "local_window_size": 2,
            "merge": "softmax",
        },
    ],
)
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_each_layer_sees_its_pattern(name, options):
    """As KerasHub computes it when the pattern is handed over as a mask."""
    model = models.build(name)
    layers = model.backbone.transformer_layers
    x = hidden_states()
    padding_mask = inputs()["padding_mask"]
    real = {"decoder_padding_mask": ops.convert_to_tensor(padding_mask)}
    masks = list(pattern_masks(model, options, padding_mask))
    expected = [
        call(layer, x, decoder_attention_mask=mask, **real)
        for layer, mask in zip(layers, masks)
    ]
    wide = [full_attention_layer(layer) for layer in layers]
    with hub.swap_attention(model, **options, layers="all", seed=SEED):
        received = [call(layer, x, **real) for layer in layers]
    for index in range(len(layers)):
        if wide[index]:
            difference = np.abs(received[index] - expected[index])
            scale = np.abs(expected[index]).max()
            assert difference[padding_mask].max() < 2e-6 * scale, index


def full_attention_layer(layer):
    """Not one whose own window would cut the pattern's."""
    return getattr(layer, "sliding_window", None) is None


def test_gated_paths_are_summed():
    """With the gates' biases, the sum of both paths that they say."""
    model = models.build("llama")
    layer = model.backbone.transformer_layers[0]
    attention = layer._self_attention_layer
    x = hidden_states()
    outputs = {}
    for mode in ("sliding_window", "stochastic"):
        with hub.swap_attention(model, mode, window_size=4, seed=SEED):
            outputs[mode] = call(attention, x)
    swap = hub.swap_attention(
        model, "small_world", window_size=4, seed=SEED, gate_bias=(-1.0, 2.0)
    )
    received = call(attention, x)
    gates = 1 / (1 + np.exp(-np.array(swap.gate_bias)))
    expected = (
        gates[0] * outputs["stochastic"] + gates[1] * outputs["sliding_window"]
    )
    # The output projection of Llama is linear and has no bias.
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_layers_have_independent_seeds():
    model = models.build("llama")
    seeds = layer_seeds(SEED, len(model.backbone.transformer_layers))
    assert len(set(seeds)) == len(seeds)
    logits = []
    for seed in (1, 1, 2):
        with hub.swap_attention(model, "stochastic", window_size=4, seed=seed):
            logits.append(models.logits(model, inputs()))
    np.testing.assert_array_equal(logits[0], logits[1])
    assert real_difference(logits[0], logits[2]) > 1e-3


def test_the_seed_is_governed_by_keras():
    model = models.build("llama")
    seeds = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        with hub.swap_attention(model, "stochastic", window_size=4) as swap:
            seeds.append(swap.seed)
    with hub.swap_attention(model, "stochastic", window_size=4) as swap:
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


@pytest.mark.parametrize("mode", ["stochastic", "small_world"])
def test_restore_leaves_nothing_behind(mode):
    model = models.build("llama")
    models.logits(model, inputs())
    before = everything_about(model)
    swap = hub.swap_attention(model, mode, window_size=4)
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
    with hub.swap_attention(model, "small_world", window_size=4):
        assert [v.path for v in model.weights][: len(paths)] == paths


def test_swapping_again_replaces():
    model = models.build("llama")
    before = everything_about(model)
    with hub.swap_attention(model, **SMALL):
        expected = models.logits(model, inputs())
    first = hub.swap_attention(model, "small_world", window_size=2)
    hub.swap_attention(model.backbone, "sliding_window", window_size=2)
    last = hub.swap_attention(model, **SMALL)
    np.testing.assert_array_equal(models.logits(model, inputs()), expected)
    first.restore()  # it is not in place any more: nothing happens
    np.testing.assert_array_equal(models.logits(model, inputs()), expected)
    last.restore()
    assert everything_about(model) == before


def test_an_error_leaves_the_swap_that_was_there():
    model = models.build("llama")
    swap = hub.swap_attention(model, **SMALL)
    expected = models.logits(model, inputs())
    with pytest.raises(ValueError):
        hub.swap_attention(model, "stochastic", window_size=0)
    with pytest.raises(ValueError):
        hub.swap_attention(model, "stochastic", window_size=4, layers=[9])
    assert hub.current_swap(model) is swap
    np.testing.assert_array_equal(models.logits(model, inputs()), expected)


def test_mode_full_is_the_model_itself():
    model = models.build("llama")
    expected = models.logits(model, inputs())
    hub.swap_attention(model, **SMALL)
    with hub.swap_attention(model, "full") as swap:
        assert hub.current_swap(model) is swap
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
    for mode in ("sliding_window", "stochastic", "small_world"):
        with hub.swap_attention(model, mode, window_size=2 * length):
            received = models.logits(model, x)
        assert np.abs(received - expected)[real].max() < 1e-5, mode


@pytest.mark.parametrize(
    "mode", ["sliding_window", "stochastic", "small_world"]
)
def test_a_mask_of_the_callers(mode):
    """Hides what it hides, beside what the pattern hides."""
    model = models.build("llama")
    layer = model.backbone.transformer_layers[0]
    x = hidden_states()
    mask = np.random.default_rng(1).random((2, LENGTH, LENGTH)) < 0.5
    mask |= np.eye(LENGTH, dtype=bool)
    expected = call(layer, x, decoder_attention_mask=mask)
    options = {"merge": "softmax"} if mode == "small_world" else {}
    with hub.swap_attention(model, mode, window_size=2 * LENGTH, **options):
        received = call(layer, x, decoder_attention_mask=mask)
    np.testing.assert_allclose(received, expected, atol=1e-5)
    with hub.swap_attention(model, mode, window_size=4, seed=SEED, **options):
        small = call(layer, x, decoder_attention_mask=mask)
        alone = call(layer, x)
    assert np.abs(small - expected).max() > 1e-3
    assert np.abs(small - alone).max() > 1e-3


def test_block_routing_refuses_a_mask_of_the_callers():
    model = models.build("llama")
    layer = model.backbone.transformer_layers[0]
    mask = np.ones((2, LENGTH, LENGTH), bool)
    with hub.swap_attention(model, "block_routed", block_size=4, top_k=2):
        with pytest.raises(ValueError, match="Swap another mode in"):
            layer(hidden_states(), decoder_attention_mask=mask)


@pytest.mark.parametrize(
    "mode", ["sliding_window", "stochastic", "small_world"]
)
def test_images_look_ahead(mode):
    """Gemma 3 lets the tokens of an image see one another both ways."""
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
    with hub.swap_attention(model, mode, window_size=2 * LENGTH):
        received = call(layer, x, **arguments)
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_embedding_models_look_both_ways():
    model = models.build("gemma3", use_bidirectional_attention=True)
    expected = models.logits(model, inputs())
    for mode in ("sliding_window", "stochastic", "small_world"):
        with hub.swap_attention(model, mode, window_size=2 * LENGTH):
            received = models.logits(model, inputs())
        assert real_difference(received, expected) < 1e-5, mode


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
    for mode in ("stochastic", "small_world"):
        with hub.swap_attention(model, mode, window_size=2 * LENGTH) as swap:
            received = models.logits(model, inputs())
            for gate in swap.gates:
                assert gate.compute_dtype == dtype.replace("mixed_", "")
        scale = np.abs(expected).max()
        assert real_difference(received, expected) < 0.05 * scale, mode


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
def test_the_rows_that_see_something_are_the_models_own(name, side):
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


def test_verify_notices_what_is_computed_otherwise():
    class Hotter(hub.Family):
        def scale(self, attention):
            return 2 * attention._inv_norm_factor

    model = models.build("llama")
    known = registry._FAMILIES["LlamaTransformerDecoder"]
    with hub.swap_attention(model, **SMALL, verify=True):
        pass
    hub.register_family(Hotter("LlamaTransformerDecoder"))
    expected = models.logits(model, inputs())
    try:
        with pytest.raises(ValueError, match="does not understand"):
            hub.swap_attention(model, **SMALL, verify=True)
    finally:
        hub.register_family(known)
    np.testing.assert_array_equal(models.logits(model, inputs()), expected)


# --- bad input


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "dense"}, "mode"),
        ({"mode": "full", "window_size": 4}, "'full' expects no `window_size`"),
        ({"mode": "full", "decode": "window"}, "expects no `decode`"),
        ({"mode": "stochastic"}, "expects `window_size`"),
        ({"mode": "stochastic", "window_size": 0}, "window_size"),
        ({"mode": "stochastic", "window_size": -3}, "window_size"),
        ({"mode": "stochastic", "window_size": 2.5}, "window_size"),
        (
            {"mode": "stochastic", "window_size": 4, "neighborhood": "ring"},
            "neighborhood",
        ),
        ({"mode": "stochastic", "window_size": 4, "decode": "fast"}, "decode"),
        (
            {"mode": "stochastic", "window_size": 4, "resample": "always"},
            "resample",
        ),
        (
            {"mode": "sliding_window", "window_size": 4, "merge": "softmax"},
            "`merge` is expected",
        ),
        (
            {"mode": "block_routed", "block_size": 4},
            "expects `top_k`",
        ),
        (
            {"mode": "block_routed", "block_size": 4, "top_k": 0},
            "top_k",
        ),
        (
            {
                "mode": "block_routed",
                "block_size": 4,
                "top_k": 2,
                "decode": "window",
            },
            "leave `decode` out",
        ),
        ({**SMALL, "layers": "some"}, "layers"),
        ({**SMALL, "layers": []}, "layers"),
        ({**SMALL, "layers": [0, 0]}, "layers"),
        ({**SMALL, "layers": 1}, "layers"),
        ({**SMALL, "seed": 2**40}, "seed"),
        ({**SMALL, "gate_bias": 1.0}, "gate_bias"),
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
