"""A model's backbone, and the swap that it is under."""

HANDLE = "_keras_sa_swap"


def backbone_of(model):
    """The backbone of a task, or the backbone itself.

    Raises:
        ValueError: if there are no decoder layers to be seen.
    """
    backbone = getattr(model, "backbone", model)
    if getattr(backbone, "transformer_layers", None):
        return backbone
    raise ValueError(
        "`model` is expected to be a KerasHub task or backbone of a decoder, "
        "with its layers in `backbone.transformer_layers`, such as "
        "`keras_hub.models.CausalLM.from_preset(...)`. "
        f"Received: {model!r} of class {type(model).__name__!r}"
    )


def current_swap(model):
    """The `AttentionSwap` that a model or its backbone is under, or `None`."""
    return getattr(getattr(model, "backbone", model), HANDLE, None)
