"""Does the swap understand this version of this family?"""

import contextlib

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_sa.hub.attention import Plan
from keras_sa.hub.attention import SwappedAttention
from keras_sa.hub.decode import Generation
from keras_sa.hub.seeds import LayerSeeds
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

_LENGTH = 16
_PADDING = 3
# The window has some keys, the other part the rest: merging is verified too.
_COVERING = SlidingWindow(_LENGTH // 2) | Stochastic(2 * _LENGTH)


def verify(backbone, plans):
    """Raises unless a swap that covers everything changes nothing.

    Args:
        backbone: a backbone that is not swapped.
        plans: the `Plan`s of the layers that are to be swapped.

    Raises:
        ValueError: if the outputs differ by more than rounding.
    """
    if not plans:
        return
    inputs, real = _inputs(backbone)
    expected = _outputs(backbone, inputs)[real]
    with contextlib.ExitStack() as stack:
        for plan in plans:
            _covering(plan).install(stack)
        received = _outputs(backbone, inputs)[real]
    error = np.linalg.norm(received - expected) / np.linalg.norm(expected)
    tolerance = 1e-4 if backbone.compute_dtype == "float32" else 5e-2
    if not error <= tolerance:
        raise ValueError(
            "`verify` expects the swapped model to compute what the model "
            "itself does when the pattern covers everything; it does not, so "
            "keras_sa does not understand this family as KerasHub "
            f"{keras_hub.__version__} has it. Received: a relative error of "
            f"{error:.2g} over layers of {type(plans[0].decoder).__name__}, "
            f"more than {tolerance:g}"
        )


def _covering(plan):
    plan = Plan(plan.index, plan.decoder, plan.family, _COVERING)
    seeds = LayerSeeds(plan.index, plan.index, resamples=False)
    return SwappedAttention(plan, seeds, Generation())


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
