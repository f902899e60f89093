"""Agreement with Hugging Face transformers on the same checkpoint.

A tiny random model is saved by transformers and read by KerasHub's own
converter. Both must give the same logits as they are, and with a sliding
window in every layer: there transformers' own window is the reference.
"""

import dataclasses
import json
import types

import keras
import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
# Older ones name the rotary settings otherwise in their configs.
transformers = pytest.importorskip("transformers", minversion="5.0")
keras_hub = pytest.importorskip("keras_hub")

from keras_sa import hub  # noqa: E402
from keras_sa.patterns import SlidingWindow  # noqa: E402

VOCABULARY = 61
# The first is longer than every native window below but that of gpt-oss.
LENGTHS = (13, 9)
PROMPTS = (7, 5)
NEW_TOKENS = 8
# Logits reach 7. Against transformers in float64, float32 is off by 9e-6 in
# transformers and 1.3e-5 in KerasHub.
ATOL = 5e-5
SLIDING = ["sliding_attention", "sliding_attention"]
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    # The default of 0.02 makes attention nearly uniform.
    "initializer_range": 0.3,
    # The KerasHub converters of Llama and Gemma do not read it and take this.
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclasses.dataclass(frozen=True)
class Family:
    """One family under its names in both libraries.

    `config` goes over `COMMON`. `sliding`, beside `sliding_window`, gives
    every layer of transformers the window; None if it knows no window.
    """

    name: str
    keras_name: str
    config: dict = dataclasses.field(default_factory=dict)
    sliding: dict | None = None


FAMILIES = [
    Family("Mistral", "Mistral", {"sliding_window": 8}, {}),
    Family(
        "Qwen3",
        "Qwen3",
        # KerasHub keeps this one in the norms of queries and keys, whatever
        # the config says: with 1e-6 the logits differ by 8e-5.
        {"rms_norm_eps": 1e-5},
        sliding={"use_sliding_window": True, "layer_types": SLIDING},
    ),
    Family(
        "Gemma2",
        "Gemma",
        {
            "sliding_window": 8,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
        {"layer_types": SLIDING},
    ),
    Family(
        "GptOss",
        "GptOss",
        {
            # No sequence is longer: the libraries disagree on this window,
            # see `test_native_window_of_gpt_oss`.
            "sliding_window": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 131072,
        },
        {"layer_types": SLIDING},
    ),
    Family("Llama", "Llama3"),
]


def new_model(family, **overrides):
    """A random transformers model; the same call gives the same weights."""
    settings = {**COMMON, **family.config, **overrides}
    config = getattr(transformers, f"{family.name}Config")(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family.name}ForCausalLM")(config)
    with torch.no_grad():
        randomise(model, family)
    return model.eval()


def randomise(model, family):
    for parameter in model.parameters():
        if parameter.ndim == 1:  # scales, biases, sinks
            parameter += 0.3 * torch.randn_like(parameter)
    # Small beside the output of attention; tied embeddings would otherwise
    # make each token predict itself.
    model.get_input_embeddings().weight.mul_(0.2)
    for parameter in model.parameters():
        # The Mistral converter of KerasHub rounds the weights to float16.
        parameter.copy_(parameter.half().float())
    if family.name == "GptOss":
        for layer in model.model.layers:
            randomise_experts(layer.mlp.experts)


def randomise_experts(experts):
    """MXFP4 weights, the only form that KerasHub reads gpt-oss in."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(experts, name)
        E, n_in, n_out = weight.shape
        blocks = torch.randint(256, (E, n_out, n_in // 32, 16)).byte()
        scales = torch.randint(123, 125, blocks.shape[:-1]).byte()
        weight.copy_(convert_moe_packed_tensors(blocks, scales))
        packed = {f"{name}_blocks": blocks, f"{name}_scales": scales}
        experts.packed = getattr(experts, "packed", {}) | packed


def save(model, folder):
    model.save_pretrained(folder)
    if model.config.model_type == "gpt_oss":
        save_as_published(model, folder)


def save_as_published(model, folder):
    """The files of gpt-oss as OpenAI publishes them.

    transformers 5 writes float experts, and the YaRN settings as
    `rope_parameters`. KerasHub reads packed experts, and `rope_scaling`.
    """
    weights = model.state_dict()
    for index, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{index}.mlp.experts."
        del weights[prefix + "gate_up_proj"], weights[prefix + "down_proj"]
        for name, value in layer.mlp.experts.packed.items():
            weights[prefix + name] = value
    safetensors_torch.save_file(weights, folder / "model.safetensors")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_scaling"] = config["rope_parameters"]
    path.write_text(json.dumps(config))


def load(family, folder):
    """The checkpoint through the converter of KerasHub."""
    models = keras_hub.models
    backbone_class = getattr(models, f"{family.keras_name}Backbone")
    causal_lm_class = getattr(models, f"{family.keras_name}CausalLM")
    backbone = backbone_class.from_preset(str(folder), dtype="float32")
    causal_lm = causal_lm_class(backbone=backbone, preprocessor=None)
    causal_lm.compile(sampler="greedy")
    return causal_lm


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f.name)
def models(request, tmp_path_factory):
    """A family, its transformers model and the same one in KerasHub."""
    family = request.param
    folder = tmp_path_factory.mktemp(family.name)
    reference = new_model(family)
    save(reference, folder)
    return types.SimpleNamespace(
        family=family, reference=reference, causal_lm=load(family, folder)
    )


def causal_window(n, window_size):
    """What to add to the scores `[1, 1, n, n]` of transformers."""
    distance = torch.arange(n)[:, None] - torch.arange(n)
    seen = (distance >= 0) & (distance < window_size)
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


class Windowed:
    """transformers with `window_size` keys per token in every layer."""

    def __init__(self, models, window_size):
        self.window_size = window_size
        self.native = models.family.sliding is not None
        self.model = models.reference
        if self.native:
            self.model = new_model(
                models.family,
                sliding_window=window_size,
                **models.family.sliding,
            )

    def logits(self, token_ids):
        if self.native:
            return reference_logits(self.model, token_ids)
        mask = causal_window(len(token_ids), self.window_size)
        return reference_logits(self.model, token_ids, attention_mask=mask)

    def greedy(self, prompt, length):
        if self.native:
            return reference_greedy(self.model, prompt, length)
        token_ids = prompt
        while len(token_ids) < length:
            best = self.logits(token_ids)[-1].argmax()
            token_ids = np.append(token_ids, best)
        return token_ids


def reference_logits(model, token_ids, **call):
    """Logits `[n, vocabulary]` of one row of transformers."""
    with torch.no_grad():
        return model(torch.tensor(token_ids)[None], **call).logits[0].numpy()


def reference_greedy(model, prompt, length):
    prompt = torch.tensor(prompt)[None]
    generated = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=length - prompt.shape[1],
        do_sample=False,
    )
    return generated[0].numpy()


def random_rows(lengths):
    random = np.random.default_rng(3)
    return [random.integers(1, VOCABULARY, size=n) for n in lengths]


def padded(rows, length):
    """The rows as KerasHub takes them, with padding at the end."""
    token_ids = np.zeros((len(rows), length), "int32")
    padding_mask = np.zeros((len(rows), length), "int32")
    for index, row in enumerate(rows):
        token_ids[index, : len(row)] = row
        padding_mask[index, : len(row)] = 1
    return {"token_ids": token_ids, "padding_mask": padding_mask}


def keras_logits(causal_lm, rows):
    logits = causal_lm(padded(rows, max(map(len, rows))))
    logits = keras.ops.convert_to_numpy(logits)
    return [logits[index, : len(row)] for index, row in enumerate(rows)]


def keras_greedy(causal_lm, rows, length):
    generated = causal_lm.generate(padded(rows, length), stop_token_ids=None)
    return keras.ops.convert_to_numpy(generated["token_ids"])


def sliding_window(causal_lm, window_size):
    return hub.swap_attention(
        causal_lm, SlidingWindow(window_size), decode="pattern", layers="all"
    )


def assert_same_logits(received, expected):
    for received_row, expected_row in zip(received, expected):
        np.testing.assert_allclose(received_row, expected_row, atol=ATOL)


def test_same_logits(models):
    rows = random_rows(LENGTHS)
    received = keras_logits(models.causal_lm, rows)
    expected = [reference_logits(models.reference, row) for row in rows]
    assert_same_logits(received, expected)


@pytest.mark.parametrize("window_size", [1, 2, 5])
def test_same_logits_with_a_window(models, window_size):
    rows = random_rows(LENGTHS)
    windowed = Windowed(models, window_size)
    expected = [windowed.logits(row) for row in rows]
    with sliding_window(models.causal_lm, window_size):
        received = keras_logits(models.causal_lm, rows)
    assert_same_logits(received, expected)
    # The window matters from the first token that it cuts off.
    full = reference_logits(models.reference, rows[0])
    difference = np.abs(full - expected[0]).max(-1)
    np.testing.assert_allclose(difference[:window_size], 0, atol=ATOL)
    assert difference[window_size:].min() > 10 * ATOL
    # And is gone afterwards.
    assert_same_logits(keras_logits(models.causal_lm, rows)[:1], [full])


@pytest.mark.parametrize("lengths", [PROMPTS[:1], PROMPTS], ids=str)
def test_same_tokens_with_a_window(models, lengths):
    prompts = random_rows(lengths)
    length = max(lengths) + NEW_TOKENS
    windowed = Windowed(models, 5)
    expected = [windowed.greedy(prompt, length) for prompt in prompts]
    with sliding_window(models.causal_lm, 5):
        received = keras_greedy(models.causal_lm, prompts, length)
    np.testing.assert_array_equal(received, expected)
    full = reference_greedy(models.reference, prompts[0], length)
    assert not np.array_equal(full, expected[0])


WITH_WINDOW = [family for family in FAMILIES if family.sliding is not None]


@pytest.mark.parametrize("family", WITH_WINDOW, ids=lambda f: f.name)
def test_transformers_counts_the_token_itself(family):
    """`sliding_window` of its configs is the number of keys."""
    one_layer = {"num_hidden_layers": 1, "layer_types": SLIDING[:1]}
    if "layer_types" not in family.sliding:
        del one_layer["layer_types"]
    settings = family.sliding | one_layer | {"sliding_window": 5}
    model = new_model(family, **settings)
    token_ids = torch.tensor(random_rows([13])[0])[None]
    x = model.get_input_embeddings()(token_ids).detach().requires_grad_()
    model(inputs_embeds=x).logits[0, -1].square().sum().backward()
    seen = x.grad[0].abs().sum(-1) > 0
    assert seen.nonzero().ravel().tolist() == [8, 9, 10, 11, 12]


def test_native_window_of_gpt_oss(tmp_path):
    """KerasHub 0.32 has one key more, and has it in the other layers.

    Published checkpoints slide in layers 0, 2, ... (`layer_types`).
    """
    family = next(family for family in FAMILIES if family.name == "GptOss")
    model = new_model(family, sliding_window=5)
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    save(model, tmp_path)
    layer_types = ["full_attention", "sliding_attention"]
    other = new_model(family, sliding_window=6, layer_types=layer_types)
    rows = random_rows(LENGTHS)
    expected = [reference_logits(other, row) for row in rows]
    assert_same_logits(keras_logits(load(family, tmp_path), rows), expected)
