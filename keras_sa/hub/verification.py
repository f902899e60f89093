"""Does the swap understand this version of this family?"""

import dataclasses

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_sa.hub.attention import SwappedAttention
from keras_sa.hub.decode import Generation
from keras_sa.hub.seeds import LayerSeeds

_LENGTH = 16
_PADDING = 3


def verify(backbone, turns):
    """Raises unless a swap whose windows cover everything changes nothing.

    Args:
        backbone: a backbone that is not swapped.
        turns: `[(pattern, (index, decoder layer, family))]`: what is to be
            swapped in, and where.

    Raises:
        ValueError: if the outputs differ by more than rounding.
    """
    if not turns:
        return
    inputs, real = _inputs(backbone)
    expected = _outputs(backbone, inputs)[real]
    swapped = [
        SwappedAttention(
            decoder,
            family,
            covering_pattern(pattern, _LENGTH),
            LayerSeeds(index, index, resamples=False),
            Generation(),
        )
        for pattern, (index, decoder, family) in turns
    ]
    for attention in swapped:
        attention.install()
    try:
        received = _outputs(backbone, inputs)[real]
    finally:
        for attention in swapped:
            attention.remove()
    error = np.linalg.norm(received - expected) / np.linalg.norm(expected)
    tolerance = 1e-4 if backbone.compute_dtype == "float32" else 5e-2
    if not error <= tolerance:
        raise ValueError(
            "`verify` expects the swapped model to compute what the model "
            "itself does when the windows cover everything; it does not, so "
            "keras_sa does not understand this family as KerasHub "
            f"{keras_hub.__version__} has it. Received: a relative error of "
            f"{error:.2g} over layers of {type(turns[0][1][1]).__name__}, more "
            f"than {tolerance:g}"
        )


def covering_pattern(pattern, length):
    """The pattern with windows that cover a whole sequence, without gates."""
    if pattern.mode == "block_routed":
        return dataclasses.replace(pattern, block_size=length, top_k=1)
    changes = {"window_size": 2 * length, "merge": None}
    if pattern.mode == "small_world":
        # Neither path alone has it all: the merging is verified as well.
        changes |= {"local_window_size": length // 2, "merge": "softmax"}
    if pattern.is_random:
        changes["resample"] = "never"
    return dataclasses.replace(pattern, **changes)


def _inputs(backbone):
    """Random tokens with padding at the end, and which of them are real."""
    rng = np.random.default_rng(0)
    shape = (2, _LENGTH)
    token_ids = rng.integers(1, backbone.vocabulary_size, shape)
    real = np.ones(shape, bool)
    real[1, -_PADDING:] = False
    positions = np.broadcast_to(np.arange(_LENGTH, dtype="int32"), shape)
    inputs = {
        "token_ids": token_ids.astype("int32"),
        "padding_mask": real.astype("int32"),
        "position_ids": positions,
    }
    names = set(backbone.input)
    if not names <= set(inputs):
        raise ValueError(
            f"verify=True expects a backbone of text alone, with inputs of "
            f"{sorted(inputs)}. Pass verify=False. "
            f"Received: inputs {sorted(names)}"
        )
    return {name: inputs[name] for name in names}, real


def _outputs(backbone, inputs):
    outputs = backbone(
        {name: ops.convert_to_tensor(x) for name, x in inputs.items()},
        training=False,
    )
    outputs = keras.tree.flatten(outputs)[0]  # of several, the hidden states
    return ops.convert_to_numpy(ops.cast(outputs, "float32"))
