"""Which decoder layers `swap_attention` knows."""

import keras_hub

from keras_sa.hub import _patching
from keras_sa.hub.families import bloom
from keras_sa.hub.families import falcon
from keras_sa.hub.families import gemma
from keras_sa.hub.families import gemma3
from keras_sa.hub.families import gemma4
from keras_sa.hub.families import gpt2
from keras_sa.hub.families import gpt_neo_x
from keras_sa.hub.families import gpt_oss
from keras_sa.hub.families import llama
from keras_sa.hub.families import mistral
from keras_sa.hub.families import phi3
from keras_sa.hub.families import qwen
from keras_sa.hub.families import qwen3
from keras_sa.hub.families import smollm3
from keras_sa.hub.families.family import Family

_FAMILIES = {
    family.decoder: family
    for family in (
        llama.LLAMA,
        mistral.MISTRAL,
        mistral.MIXTRAL,
        qwen.QWEN,
        qwen.QWEN_MOE,
        qwen3.QWEN3,
        qwen3.QWEN3_MOE,
        qwen3.QWEN3_5,
        qwen3.QWEN3_5_MOE,
        phi3.PHI3,
        smollm3.SMOLLM3,
        gpt_oss.GPT_OSS,
        gemma.GEMMA,
        gemma3.GEMMA3,
        gemma4.GEMMA4,
        gpt2.TRANSFORMER_DECODER,
        gpt_neo_x.GPT_NEO_X,
        bloom.BLOOM,
        falcon.FALCON,
    )
}


def register_family(family):
    """Makes a class of decoder layers known to `swap_attention`.

    A family that was registered for the same class before is replaced.

    Args:
        family: a `keras_sa.hub.Family`.

    Raises:
        ValueError: if `family` is not a `Family`.

    Example:

    >>> from keras_sa import hub
    >>> hub.register_family(hub.Family("MyDecoderLayer"))
    """
    if not isinstance(family, Family):
        raise ValueError(
            "`family` is expected to be a `keras_sa.hub.Family`. "
            f"Received: family={family!r}"
        )
    _FAMILIES[family.decoder] = family


def registered_decoders():
    """Names of the classes of decoder layers that are known."""
    return tuple(_FAMILIES)


def family_of(decoder):
    """The family of a decoder layer.

    Raises:
        ValueError: if there is none, or if the layer is not as its family
            says: then KerasHub has changed.
    """
    # By the exact name: a subclass may attend in another way.
    name = type(decoder).__name__
    family = _FAMILIES.get(name)
    if family is None:
        raise ValueError(
            "`swap_attention` expects decoder layers of a family that it "
            f"knows: {', '.join(sorted(_FAMILIES))}. For another one, describe "
            "it with `keras_sa.hub.register_family(keras_sa.hub.Family("
            f"{name!r}, ...))`. Received: layers of class {name!r} "
            f"({type(decoder).__module__}, KerasHub {keras_hub.__version__})"
        )
    objection = family.why_not(decoder)
    if objection is not None:
        raise ValueError(
            f"`swap_attention` can't take layer {decoder.name!r} of class "
            f"{name!r}: {objection}. Expected a decoder of causal language "
            f"models. Received: {decoder}"
        )
    return family


def check_hooks(decoder, family):
    """Raises if the methods that a swap overrides are not there."""
    attention = family.find_attention(decoder)
    hooks = [(decoder, family.mask_method)]
    if not hasattr(family, "call"):
        hooks.append((attention, _patching.COMPUTE_ATTENTION))
    for layer, method in hooks:
        if not hasattr(layer, method):
            raise ValueError(
                f"Family {family.decoder!r} expects a method {method!r} of "
                f"{type(layer).__name__}; this version of the model has none. "
                "Register a family that says what it is called now. "
                f"Received: KerasHub {keras_hub.__version__}"
            )
    if not attention.built:
        raise ValueError(
            "`swap_attention` expects a built model: call it on data first. "
            f"Received: attention layer {attention.name!r}, not built"
        )
