"""The small KerasHub language model of the examples, and how they train one.

It stands where a pretrained model would: trained with full attention on the
source of Python's standard library by pretrain/run.py, and kept with the
quickstart. A token is a byte, so there is no tokenizer.
"""

import pathlib

import keras
import keras_hub

from examples.shared import byte_text
from examples.shared.command_line import elapsed

FOLDER = pathlib.Path(__file__).parents[1] / "quickstart" / "tiny_model"
BATCH_SIZE = 2  # small batches learn most per byte read


def load(dtype=None):
    """The model that is kept with the quickstart.

    Args:
        dtype: optional, to load it in.
    """
    preset = str(FOLDER / "preset")
    return keras_hub.models.CausalLM.from_preset(preset, dtype=dtype)


def build(**sizes):
    """A new model of bytes; any other KerasHub decoder would do.

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


def compile_for_training(causal_lm, steps, learning_rate):
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
