"""The sizes of model and training that can be asked for by name."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a decoder of the Qwen 3 architecture."""

    num_layers: int
    num_query_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_dim: int
    intermediate_dim: int


@dataclasses.dataclass(frozen=True)
class Size:
    """A model and what to train it with, unless the command line says else.

    Attributes:
        shape: of the model.
        training: the defaults of arguments of the command line, by name.
    """

    shape: Shape
    training: dict


SIZES = {
    # Minutes on a CPU. Small batches learn most per byte read.
    "tiny": Size(
        Shape(
            num_layers=6,
            num_query_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            hidden_dim=128,
            intermediate_dim=256,
        ),
        {
            "tokenizer": "bytes",
            "vocabulary_size": 4096,
            "length": 512,
            "batch_size": 2,
            "accumulation": 1,
            "steps": 1200,
            "warmup_steps": 60,
            "learning_rate": 4e-3,
            "dtype": "float32",
            "log_every": 20,
            "held_out_sequences": 64,
        },
    ),
    # A few hours on one GPU.
    "small": Size(
        Shape(
            num_layers=12,
            num_query_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            hidden_dim=512,
            intermediate_dim=1536,
        ),
        {
            "tokenizer": "bpe",
            "vocabulary_size": 32_768,
            "length": 1024,
            "batch_size": 32,
            "accumulation": 2,
            "steps": 20_000,
            "warmup_steps": 500,
            "learning_rate": 1e-3,
            "dtype": "mixed_bfloat16",
            "log_every": 50,
            "held_out_sequences": 512,
        },
    ),
    # The size of arXiv 2604.00754: about 15 billion tokens, 0.5 million a
    # step.
    "paper-360m": Size(
        Shape(
            num_layers=24,
            num_query_heads=16,
            num_key_value_heads=16,
            head_dim=64,
            hidden_dim=1024,
            intermediate_dim=3072,
        ),
        {
            "tokenizer": "bpe",
            "vocabulary_size": 32_768,
            "length": 2048,
            "batch_size": 16,
            "accumulation": 16,
            "steps": 28_600,
            "warmup_steps": 1000,
            "learning_rate": 4e-4,
            "dtype": "mixed_bfloat16",
            "log_every": 10,
            "held_out_sequences": 1024,
        },
    ),
}
