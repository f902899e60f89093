"""The model that is trained: a decoder of KerasHub with random weights."""

import dataclasses

import keras_hub


def build_model(shape, vocabulary_size, dtype):
    """A `keras_hub.models.Qwen3CausalLM`, to be given tokens.

    Args:
        shape: `sizes.Shape`.
        vocabulary_size: int.
        dtype: name of a dtype policy, such as `"mixed_bfloat16"`.
    """
    backbone = keras_hub.models.Qwen3Backbone(
        vocabulary_size=vocabulary_size,
        **dataclasses.asdict(shape),
        dtype=dtype,
    )
    return keras_hub.models.Qwen3CausalLM(backbone=backbone, preprocessor=None)
