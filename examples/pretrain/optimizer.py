"""AdamW as language models are trained with it."""

import keras

_BETA_2 = 0.95
_LAST_RATE = 0.1  # of the highest


def compile_for_training(
    model,
    *,
    steps,
    warmup_steps,
    learning_rate,
    weight_decay,
    global_clipnorm,
    accumulation,
):
    """A linear warm-up, a cosine, and a limit on the gradient's norm.

    Args:
        model: a `keras_hub.models.CausalLM`.
        steps: updates of the weights.
        warmup_steps: of them, to reach the learning rate.
        learning_rate: the highest.
        weight_decay: of matrices; see `is_decayed`.
        global_clipnorm: the norm that all gradients together may have.
        accumulation: batches whose mean gradient makes an update.
    """
    # Keras 3.15 counts batches here, not updates.
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=learning_rate / warmup_steps,
        warmup_target=learning_rate,
        warmup_steps=warmup_steps * accumulation,
        decay_steps=max(1, steps - warmup_steps) * accumulation,
        alpha=_LAST_RATE,
    )
    optimizer = keras.optimizers.AdamW(
        schedule,
        beta_2=_BETA_2,
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        gradient_accumulation_steps=accumulation if accumulation > 1 else None,
    )
    optimizer.exclude_from_weight_decay(
        [v for v in model.trainable_variables if not is_decayed(v)]
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],  # `None` would be KerasHub's accuracy
    )


def is_decayed(variable):
    """Whether a variable is a matrix; embeddings and gates do not count."""
    return len(variable.shape) > 1 and not any(
        name in variable.path for name in ("embedding", "attention_gate")
    )
