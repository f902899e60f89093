"""A few steps of training a small swapped model: what the scripts share.

Letters: `B` batch, `n` tokens.
"""

import keras
import numpy as np

from keras_sa import hub
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

BATCH_SIZE = 8
LENGTH = 16
NUM_STEPS = 3
LEARNING_RATE = 0.05
_GATED = Stochastic(4) + SlidingWindow(4)
SWAPS = {
    "gates": {"pattern": _GATED, "resample": "never"},
    # A new order of tokens at every step, the same on every device.
    "gates_resampled": {"pattern": _GATED},
    "stochastic": {"pattern": Stochastic(4)},
}
PROMPTS = models.prompts([5, 7, 3, 6, 4, 7, 2, 5], 12)


def data(mask_dtype="bool"):
    """Inputs `[B, n]` of a causal language model, and labels `[B, n]`."""
    lengths = np.array([LENGTH, LENGTH - 3] * (BATCH_SIZE // 2))
    tokens = np.random.default_rng(0).integers(
        1, models.VOCABULARY_SIZE, (BATCH_SIZE, LENGTH + 1)
    )
    real = np.arange(LENGTH) < lengths[:, None]
    inputs = {
        "token_ids": np.where(real, tokens[:, :-1], 0).astype("int32"),
        "padding_mask": real.astype(mask_dtype),
    }
    return inputs, tokens[:, 1:].astype("int32")


def build(name, swap):
    """A compiled model of a family under one of `SWAPS`."""
    keras.utils.set_random_seed(1)
    causal_lm = models.build(name)
    hub.swap_attention(causal_lm, seed=3, **SWAPS[swap])
    causal_lm.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        sampler="greedy",
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return causal_lm


def fit(causal_lm, mask_dtype="bool"):
    """Trains. Returns the losses and the gates as they became, by path."""
    inputs, labels = data(mask_dtype)
    history = causal_lm.fit(
        inputs,
        labels,
        batch_size=BATCH_SIZE,
        epochs=NUM_STEPS,  # of one step each
        shuffle=False,
        verbose=0,
    )
    return {"losses": history.history["loss"], "gates": gates(causal_lm)}


def gates(causal_lm):
    return {
        variable.path: variable.numpy().tolist()
        for variable in causal_lm.trainable_variables
        if variable.path.startswith("attention_gate_")
    }


def generate(causal_lm):
    outputs = causal_lm.generate(PROMPTS, stop_token_ids=None)
    return np.asarray(outputs["token_ids"]).tolist()
