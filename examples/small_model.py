"""A small KerasHub language model of bytes, trained here, without a download.

It stands where a pretrained model would: trained with full attention, kept as
a preset in a local folder.
"""

import json

import byte_text
import keras
import keras_hub
import numpy as np
from command_line import elapsed

BATCH_SIZE = 2  # small batches learn most per byte read
STEPS_PER_MINUTE = 600
LEARNING_RATE = 6e-3
_SETTINGS_FILE = "training.json"


def build(**sizes):
    """Any KerasHub decoder would do; a tokenizer is not needed for bytes.

    Args:
        **sizes: arguments of the backbone that are not to be those of here.
    """
    backbone = keras_hub.models.Qwen3Backbone(
        **{
            "vocabulary_size": byte_text.VOCABULARY_SIZE,
            "num_layers": 3,
            "num_query_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_dim": 128,
            "intermediate_dim": 256,
            **sizes,
        }
    )
    return keras_hub.models.Qwen3CausalLM(backbone=backbone, preprocessor=None)


def compile_for_training(causal_lm, steps, learning_rate=LEARNING_RATE):
    """AdamW, a warm-up, a cosine, and a limit on the gradient's norm."""
    warmup_steps = max(1, min(30, steps // 5))
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=learning_rate,
        warmup_steps=warmup_steps,
        decay_steps=max(1, steps - warmup_steps),
        alpha=0.05,
    )
    causal_lm.compile(
        optimizer=keras.optimizers.AdamW(
            schedule, weight_decay=0.05, beta_2=0.95, global_clipnorm=1.0
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],  # `None` would keep those of before
        sampler="greedy",
    )


class Progress(keras.callbacks.Callback):
    """Prints the step, the time and the loss of the steps since the last."""

    def on_epoch_begin(self, epoch, logs=None):
        self.seen, self.total = 0, 0.0

    def on_train_batch_end(self, batch, logs=None):
        step, steps = batch + 1, self.params["steps"]
        if step % max(1, steps // 10) and step != steps:
            return
        # Keras reports the mean since the start of the epoch.
        total = float(logs["loss"]) * step
        recent = (total - self.total) / (step - self.seen)
        self.seen, self.total = step, total
        print(
            f"  step {step:4d} of {steps}  {elapsed()}  loss {recent:.3f}",
            flush=True,
        )


def fit(causal_lm, examples, batch_size=BATCH_SIZE):
    causal_lm.fit(
        *examples,
        batch_size=batch_size,
        shuffle=False,  # they were drawn at random
        verbose=0,
        callbacks=[Progress()],
    )


def load_or_train(folder, text_folder, minutes, length, seed, dtype=None):
    """The model, trained with full attention: once for the same settings.

    Args:
        folder: path that keeps it, as a KerasHub preset.
        text_folder: path of the text.
        minutes: of training, roughly, on 2 CPU cores with JAX.
        length: tokens of a sequence.
        seed: int.
        dtype: optional, to load it in.
    """
    settings = {
        "text": str(text_folder.resolve()),
        "minutes": minutes,
        "length": length,
        "seed": seed,
    }
    if _settings_of(folder) != settings:
        keras.utils.set_random_seed(seed)
        _train(text_folder, minutes, length, seed).save_to_preset(str(folder))
        (folder / _SETTINGS_FILE).write_text(json.dumps(settings))
    print(f"  small model of bytes: {folder}")
    return keras_hub.models.CausalLM.from_preset(str(folder), dtype=dtype)


def _settings_of(folder):
    path = folder / _SETTINGS_FILE
    return json.loads(path.read_text()) if path.is_file() else None


def _train(text_folder, minutes, length, seed):
    train, _ = byte_text.read_texts(text_folder)
    steps = max(10, round(minutes * STEPS_PER_MINUTE))
    causal_lm = build()
    print(f"  training {causal_lm.count_params():,} parameters, {steps} steps")
    sequences = byte_text.cut_sequences(
        train, steps * BATCH_SIZE, length + 1, np.random.default_rng(seed)
    )
    compile_for_training(causal_lm, steps)
    fit(causal_lm, byte_text.as_examples(sequences))
    return causal_lm
