"""Who sees whom in each layer of a model, for `keras_sa.analysis`.

Letters: `n` tokens, `H` query heads.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from keras_sa.backend import no_gradients
from keras_sa.hub import registry
from keras_sa.hub.backbones import backbone_of
from keras_sa.hub.backbones import current_swap
from keras_sa.ops import patterns


def attention_patterns(model, inputs=None):
    """Who sees whom in each decoder layer of a KerasHub model, swapped or not.

    A pattern says what the layer does outside training: random orders are
    those of the seed. What several heads or paths see counts together, and a
    gate hides nobody. A layer that has no attention, such as the linear ones
    of Qwen3.5, hears of every earlier token by other means: it counts as full
    causal attention, so that receptive fields are right. A window is what the
    model's configuration says, also where KerasHub ignores it, as it does
    that of Qwen on JAX and PyTorch.

    Args:
        model: a KerasHub task or backbone with decoder layers of a known
            family.
        inputs: what the backbone is called on, one text without padding.
            Only needed, and only looked at, if there are layers of
            `"block_routed"` attention: the tokens choose whom they see.

    Returns:
        A list of patterns of `keras_sa.ops.patterns`, one for each of
        `backbone.transformer_layers`.

    Raises:
        ValueError: for a model of another kind, or `inputs` that are missing
            or not one text.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> with hub.swap_attention(
    ...     backbone, "sliding_window", window_size=8, layers=[1]
    ... ):
    ...     hub.attention_patterns(backbone)
    [Full(causal=True), SlidingWindow(causal=True, window_size=8)]
    """
    swap = current_swap(model)
    if swap is not None:
        return swap.attention_patterns(inputs)
    return patterns_of_layers(backbone_of(model), [], inputs)


def patterns_of_layers(backbone, swapped_attentions, inputs=None):
    """`attention_patterns` of a backbone and its `SwappedAttention`s."""
    found = {
        id(swapped.decoder): _swapped_pattern(swapped)
        for swapped in swapped_attentions
        if swapped.pattern.mode != "block_routed"
    }
    routed = [x for x in swapped_attentions if id(x.decoder) not in found]
    if routed:
        routes = _choose_routes(backbone, routed, inputs)
        for swapped, blocks in zip(routed, routes):
            found[id(swapped.decoder)] = patterns.BlockRouted(
                swapped.pattern.block_size, blocks, causal=_is_causal(swapped)
            )
    return [
        found.get(id(decoder)) or _native_pattern(decoder)
        for decoder in backbone.transformer_layers
    ]


def _native_pattern(decoder):
    family = registry.family_of(decoder)
    attention = family.find_attention(decoder)
    if attention is None:
        return patterns.Full(causal=True)
    return family.native_pattern(decoder, attention)


def _is_causal(swapped):
    return not swapped.family.is_bidirectional(swapped.decoder)


def _swapped_pattern(swapped):
    pattern, causal = swapped.pattern, _is_causal(swapped)
    if pattern.mode == "sliding_window":
        return patterns.SlidingWindow(pattern.window_size, causal=causal)
    options = {
        "window_size": pattern.window_size,
        "neighborhood": pattern.neighborhood,
        "order": pattern.order,
        "causal": causal,
    }
    if pattern.has_random_order:
        seed = int(ops.convert_to_numpy(swapped.seed.read()))
        options["seed"] = seed % 2**32  # as `layer_seeds` has it
        if pattern.permute == "head":
            options["num_permutations"] = swapped.family.num_key_value_heads(
                swapped.attention
            )
    if pattern.mode == "stochastic":
        return patterns.Stochastic(**options)
    return patterns.SmallWorld(
        **options, local_window_size=pattern.local_window_size
    )


def _choose_routes(backbone, routed, inputs):
    """The blocks `[n, H, top_k]` that the tokens choose, for each layer."""
    _check_one_text(inputs)
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    with contextlib.ExitStack() as stack:
        records = [stack.enter_context(x.recording_routes()) for x in routed]
        stack.enter_context(no_gradients())
        backbone(inputs, training=False)
    return [calls[0][0] for calls in records]


def _check_one_text(inputs):
    what = "None"
    if inputs is not None:
        shape = np.shape(keras.tree.flatten(inputs)[0])
        what = f"inputs of shape {tuple(shape)}"
        mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
        is_padded = mask is not None and not np.all(ops.convert_to_numpy(mask))
        if len(shape) > 1 and shape[0] == 1 and not is_padded:
            return
        what += ", with padding" if is_padded else ""
    raise ValueError(
        "In block-routed attention, tokens choose whom they see. `inputs` is "
        "expected to be what the backbone is called on, one text without "
        "padding: `keras_sa.hub.attention_patterns(model, inputs)`. "
        f"Received: {what}"
    )
