"""Tiny causal language models of KerasHub, one per family.

They are built from their configuration and get seeded weights, so that no test
needs the network. Letters: `B` batch, `n` tokens, `V` vocabulary.
"""

import dataclasses

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from tests import testing

VOCABULARY_SIZE = 32
# Longer than any sequence of the tests.
WIDE_WINDOW = 64
# Shorter than most, where windowed layers alternate with global ones.
WINDOW = 5

SIZES = {
    "vocabulary_size": VOCABULARY_SIZE,
    "num_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}
HEADS = {**SIZES, "num_heads": 4}
GROUPED_HEADS = {**SIZES, "num_query_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "top_k": 2}
LINEAR_ATTENTION = {
    "layer_types": ["linear_attention", "full_attention"],
    # Half of 4 dims turn: the default, a quarter, is less than one pair.
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
}


@dataclasses.dataclass(frozen=True)
class Family:
    """One architecture of KerasHub.

    Attributes:
        model: what the public names of its backbone and its causal language
            model begin with.
        arguments: of its backbone.
    """

    model: str
    arguments: dict

    def __call__(self, dtype="float32", preprocessor=None, **changes):
        """As `build`, with the weights KerasHub draws, and not compiled."""
        backbone_class = getattr(keras_hub.models, f"{self.model}Backbone")
        causal_lm_class = getattr(keras_hub.models, f"{self.model}CausalLM")
        default = keras.config.dtype_policy()
        # SmolLM3 hands `dtype` to none of its layers.
        keras.config.set_dtype_policy(dtype)
        try:
            backbone = backbone_class(**{**self.arguments, **changes})
            return causal_lm_class(backbone=backbone, preprocessor=preprocessor)
        finally:
            keras.config.set_dtype_policy(default)


FAMILIES = {
    "llama": Family("Llama", GROUPED_HEADS),
    "llama3": Family("Llama3", GROUPED_HEADS),
    "mistral": Family(
        "Mistral", {**GROUPED_HEADS, "sliding_window": WIDE_WINDOW}
    ),
    "mixtral": Family(
        "Mixtral", {**GROUPED_HEADS, **EXPERTS, "sliding_window": WIDE_WINDOW}
    ),
    "qwen": Family("Qwen", GROUPED_HEADS),
    "qwen_moe": Family(
        "QwenMoe",
        {
            **GROUPED_HEADS,
            **EXPERTS,
            "moe_intermediate_dim": 24,
            "shared_expert_intermediate_dim": 24,
        },
    ),
    "qwen3": Family("Qwen3", {**GROUPED_HEADS, "head_dim": 4}),
    "qwen3_moe": Family(
        "Qwen3Moe",
        {
            **GROUPED_HEADS,
            **EXPERTS,
            "head_dim": 4,
            "moe_intermediate_dim": 24,
        },
    ),
    "qwen3_5": Family(
        "Qwen3_5", {**GROUPED_HEADS, **LINEAR_ATTENTION, "head_dim": 4}
    ),
    "qwen3_5_moe": Family(
        "Qwen3_5Moe",
        {
            "vocabulary_size": VOCABULARY_SIZE,
            "num_layers": 2,
            "hidden_dim": 16,
            "num_query_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "moe_intermediate_dim": 24,
            "shared_expert_intermediate_size": 24,
            **EXPERTS,
            **LINEAR_ATTENTION,
        },
    ),
    "phi3": Family("Phi3", GROUPED_HEADS),
    "smollm3": Family(
        "SmolLM3",
        {
            **SIZES,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "attention_bias": False,
            "attention_dropout": 0.0,
            # One layer with rotary positions, one without.
            "rope_layer_enabled_list": [True, False],
            "layer_types": ["full_attention"] * 2,
            "mlp_bias": False,
            "layer_norm_epsilon": 1e-6,
            "max_position_embeddings": WIDE_WINDOW,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
        },
    ),
    "gpt_oss": Family(
        "GptOss",
        {**GROUPED_HEADS, **EXPERTS, "head_dim": 4, "sliding_window": WINDOW},
    ),
    "gemma": Family("Gemma", {**GROUPED_HEADS, "head_dim": 4}),
    "gemma2": Family(
        "Gemma",
        {
            **GROUPED_HEADS,
            "head_dim": 4,
            "query_head_dim_normalize": False,
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
            "attention_logit_soft_cap": 2.0,
            "final_logit_soft_cap": 30.0,
            "use_sliding_window_attention": True,
            "sliding_window_size": WINDOW,
        },
    ),
    "gemma3": Family(
        "Gemma3",
        {
            **GROUPED_HEADS,
            # Five local layers, then a global one.
            "num_layers": 6,
            "head_dim": 4,
            "image_size": 16,
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
            "use_sliding_window_attention": True,
            "sliding_window_size": WINDOW,
        },
    ),
    "gemma4": Family(
        "Gemma4",
        {
            **GROUPED_HEADS,
            # Layers 2 and 3 take the keys and values of layers 0 and 1.
            "num_layers": 4,
            "num_kv_shared_layers": 2,
            "sliding_window_pattern": 2,
            "sliding_window_size": WINDOW,
            "head_dim": 4,
            "global_head_dim": 8,
            "image_size": 16,
        },
    ),
    "gpt2": Family("GPT2", {**HEADS, "dropout": 0.0}),
    "opt": Family("OPT", {**HEADS, "dropout": 0.0}),
    "gpt_neo_x": Family("GPTNeoX", {**HEADS, "rotary_percentage": 0.5}),
    "bloom": Family("Bloom", HEADS),
    "falcon": Family("Falcon", {**SIZES, "num_attention_heads": 4}),
}


def build(name, dtype="float32", preprocessor=None, **changes):
    """A causal language model of a family, compiled for greedy decoding.

    Args:
        name: one of `FAMILIES`.
        dtype: a Keras dtype policy.
        preprocessor: of the KerasHub model, or `None`.
        **changes: arguments of the backbone.

    Returns:
        The model. Its weights depend on their shapes and their order only.
    """
    causal_lm = FAMILIES[name](dtype, preprocessor, **changes)
    draw_weights(causal_lm)
    if name == "gemma3":
        forget_images(causal_lm)
    causal_lm.compile(sampler="greedy", jit_compile=False)
    return causal_lm


def draw_weights(causal_lm, seed=37):
    """Gives every matrix, and the attention sinks, weights that matter.

    With KerasHub's own (a deviation of 0.02) all attention is uniform. Norms,
    scalars and vectors of biases keep their values. Of 40 seeds the default
    makes greedy decoding repeat itself least.
    """
    random = np.random.default_rng(seed)
    for variable in causal_lm.trainable_variables:
        if len(variable.shape) < 2 and variable.name != "sinks":
            continue
        weights = random.normal(size=variable.shape)
        variable.assign(_deviation(variable, causal_lm.backbone) * weights)


def _deviation(variable, backbone):
    if variable.name == "sinks":
        return 1.0
    root = backbone.hidden_dim**0.5
    if variable.name == "embeddings" and "Gemma" in type(backbone).__name__:
        return 2 / root**2  # Gemma multiplies what it looks up by the root.
    # Nearly every sum in these models is over about `hidden_dim` terms.
    return 2 / root


def forget_images(causal_lm):
    """Lets Gemma 3 generate from tokens alone.

    Without a preprocessor its outputs hold `images: None`, which KerasHub 0.32
    then tries to concatenate.
    """
    normalize = causal_lm._normalize_generate_outputs

    def without_images(outputs, input_is_scalar):
        for batch in outputs:
            batch.pop("images", None)
        return normalize(outputs, input_is_scalar)

    causal_lm._normalize_generate_outputs = without_images


def skip_where_compiled(what):
    """More of a kind than is needed where each costs seconds to compile."""
    if testing.IS_COMPILED:
        pytest.skip(f"{what}: on torch, where nothing is compiled")


def prompts(lengths, max_length, seed=0):
    """Random tokens, padded on the right with zeros.

    Args:
        lengths: `B` integers.
        max_length: `n`, how far `generate` goes. The tokens of a row do not
            depend on it, nor on the other rows.
        seed: of the tokens.

    Returns:
        `{"token_ids": [B, n] int32, "padding_mask": [B, n] bool}`.
    """
    shape = (len(lengths), max_length)
    token_ids = np.zeros(shape, "int32")
    for row, length in enumerate(lengths):
        random = np.random.default_rng([seed, row])
        token_ids[row, :length] = random.integers(1, VOCABULARY_SIZE, length)
    # Boolean, because Gemma 3 and 4 invert it by `~`.
    padding_mask = np.arange(max_length) < np.array(lengths)[:, None]
    return {"token_ids": token_ids, "padding_mask": padding_mask}


def logits(causal_lm, inputs):
    """What the model predicts, all tokens at once: `[B, n, V]` float32."""
    inputs = dict(inputs)
    if "position_ids" in causal_lm.input:  # Gemma 4
        batch_size, length = inputs["token_ids"].shape
        positions = np.arange(length, dtype="int32")
        inputs["position_ids"] = np.tile(positions, (batch_size, 1))
    inputs = {key: ops.convert_to_tensor(x) for key, x in inputs.items()}

    def call(inputs):
        return ops.cast(causal_lm(inputs), "float32")

    return ops.convert_to_numpy(testing.compiled_on_jax(call)(inputs))
