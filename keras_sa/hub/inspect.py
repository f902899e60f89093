"""What a model attends to, swapped or not: as patterns, and as weights.

An attention is linear in its values. Where values are the identity, row j
being 1 in channel j, its output is its weights. So they are read off the
computation that the model does, whatever its scale, soft cap, sinks, windows,
permutations or gates are, and nothing of it is written a second time.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D`
features of a value.
"""

import contextlib
import functools
import inspect

import keras
import numpy as np
from keras import ops

from keras_sa.backend import no_gradients
from keras_sa.hub import _patching
from keras_sa.hub.families import registry
from keras_sa.patterns import Full


def attention_patterns(model, inputs=None):
    """What each decoder layer of a KerasHub model attends to, swapped or not.

    A pattern says what the layer does outside training: permutations are
    those of the seed. What several heads or terms attend to counts together,
    and a gate hides nobody. A layer that has no attention, such as the linear
    ones of Qwen3.5, knows of every earlier token by other means: it counts as
    full causal attention, so that receptive fields are right. A window is what
    the model's configuration says, also where KerasHub ignores it, as it does
    that of Qwen on JAX and PyTorch.

    Args:
        model: a KerasHub task or backbone with decoder layers of a known
            family.
        inputs: what the backbone is called on, one text without padding.
            Only needed, and only looked at, if tokens choose what they attend
            to, as with `BlockRouted`.

    Returns:
        A list of `keras_sa.patterns.BoundPattern`, one for each of
        `backbone.transformer_layers`.

    Raises:
        ValueError: for a model of another kind, or `inputs` that are missing
            or not one text.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.patterns import SlidingWindow
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> with hub.swap_attention(backbone, {1: SlidingWindow(8)}):
    ...     patterns = hub.attention_patterns(backbone)
    >>> [bound.pattern for bound in patterns]
    [Full(), SlidingWindow(8)]
    """
    swap = _patching.current_swap(model)
    if swap is not None:
        return swap.attention_patterns(inputs)
    return patterns_of_layers(_patching.backbone_of(model), [], inputs)


def patterns_of_layers(backbone, attentions, inputs=None):
    """`attention_patterns` of a backbone and its `SwappedAttention`s."""
    choosing = [x for x in attentions if "routes" in x.pattern.needs()]
    routes = _choose_routes(backbone, choosing, inputs) if choosing else {}
    swapped = {id(x.decoder): x for x in attentions}
    return [
        swapped[id(decoder)].bound_pattern(routes.get(id(decoder)))
        if id(decoder) in swapped
        else _native_pattern(decoder)
        for decoder in _patching.decoder_layers(backbone)
    ]


def _native_pattern(decoder):
    family = registry.family_of(decoder)
    attention = family.find_attention(decoder)
    if attention is None:
        return Full().bind(is_causal=True)
    pattern = family.native_pattern(decoder, attention)
    return pattern.bind(is_causal=not family.is_bidirectional(decoder))


def _choose_routes(backbone, attentions, inputs):
    """The routes that tokens choose, by the id of the decoder layer."""
    _check_one_text(inputs)
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    with contextlib.ExitStack() as stack:
        records = {
            id(x.decoder): stack.enter_context(x.recording_routes())
            for x in attentions
        }
        stack.enter_context(no_gradients())
        backbone(inputs, training=False)
    return {key: calls[0] for key, calls in records.items()}


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
        "With BlockRouted, tokens choose what they attend to. `inputs` is "
        "expected to be what the backbone is called on, one text without "
        "padding: `keras_sa.hub.attention_patterns(model, inputs)`. "
        f"Received: {what}"
    )


# Weights.


def measure_attention(model, inputs, measure):
    """A measure of the attention weights of each layer, as the model runs.

    Weights of a layer are what its heads multiply values with, at the
    original positions of the tokens: after position encodings, scale, soft
    cap and masks. Rows sum to 1; to less with sinks; with gates they are the
    gated sum of the terms' weights, and sum to that of the gates. Rows of
    padding are 0. The model runs eagerly and as outside training, computes
    what it always does, and is left as it was.

    It takes `B H n^2` numbers of memory, for one layer at a time, and runs
    each attention `n / D` times more, with `D` features in a value.

    Args:
        model: a KerasHub task or backbone with decoder layers of a known
            family, swapped or not.
        inputs: what the backbone is called on, such as a dict of `token_ids`
            and `padding_mask`, `[B, n]`.
        measure: function of the weights of a layer, a numpy array
            `[B, H, n, n]` of float32 (of the precision of the model, such as
            bfloat16). It is called for one layer after the other.

    Returns:
        A list of what `measure` returned, one for each of
        `layers_with_attention(model)`.

    Raises:
        ValueError: for a model without decoder layers of a known family.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> inputs = {
    ...     "token_ids": keras.ops.ones((1, 10), "int32"),
    ...     "padding_mask": keras.ops.ones((1, 10), "int32"),
    ... }
    >>> hub.measure_attention(backbone, inputs, lambda weights: weights.shape)
    [(1, 4, 10, 10), (1, 4, 10, 10)]
    """
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    real = _real_tokens(inputs)
    measured = []

    def take(weights):
        if real is not None:
            weights *= real[:, None, :, None]
        measured.append(measure(weights))

    with contextlib.ExitStack() as stack:
        for _, decoder, family in _attending(model):
            registry.check_hooks(decoder, family)
            attention = family.find_attention(decoder)
            members = _reading_members(family, attention, take)
            _patching.overriding(stack, attention, members)
        stack.enter_context(no_gradients())
        _patching.backbone_of(model)(inputs, training=False)
    return measured


def layers_with_attention(model):
    """Indices of the decoder layers that have attention, in order.

    Nearly all families have it in all layers; Qwen3.5 has other layers, too.

    Args:
        model: a KerasHub task or backbone with decoder layers of a known
            family.

    Returns:
        A list of ints, of `backbone.transformer_layers`.

    Raises:
        ValueError: for a model without decoder layers of a known family.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> backbone = keras_hub.models.LlamaBackbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=2,
    ...     num_key_value_heads=1, hidden_dim=16, intermediate_dim=16,
    ... )
    >>> hub.layers_with_attention(backbone)
    [0, 1]
    """
    return [index for index, _, _ in _attending(model)]


def _attending(model):
    """`[(index, decoder layer, family)]` of the layers with attention."""
    layers = _patching.decoder_layers(_patching.backbone_of(model))
    layers = enumerate(layers)
    known = [(i, decoder, registry.family_of(decoder)) for i, decoder in layers]
    return [x for x in known if x[2].find_attention(x[1]) is not None]


def _real_tokens(inputs):
    """Boolean `[B, n]` as numpy, or `None`."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.convert_to_numpy(mask).astype("bool")


def _reading_members(family, attention, take):
    """Methods of an attention that hand its weights to `take`."""
    if hasattr(family, "call"):  # it has no `_compute_attention`
        return _reading_call(family, attention, take)
    method = _patching.ComputeAttention(attention)

    def compute(call):
        query, key, value = call.tensors

        def attend(values):
            # A copy: Gemma scales its queries in place.
            output = call.run(ops.copy(query), key, values)
            # `keras.layers.MultiHeadAttention` returns scores as well.
            return output[0] if isinstance(output, tuple) else output

        take(_weights(attend, value))
        return call.run(query, key, value)

    return method.overriding(compute)


def _reading_call(family, attention, take):
    """The same where all is in `call`: values are what the layer that
    projects them returns, and outputs what another one is given."""
    *_, value_name, output_name = family.projections
    project_value = getattr(attention, value_name)
    project_output = getattr(attention, output_name)
    others = {}  # than these two, by name
    original = type(attention).call
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(attention, *args, **kwargs):
        def attend(values):
            outputs = []

            def keep(output):
                outputs.append(output)
                return project_output(output)

            others.update({value_name: lambda _: values, output_name: keep})
            try:
                original(attention, *args, **kwargs)
            finally:
                others.clear()
            return ops.reshape(outputs[0], ops.shape(values))

        bound = signature.bind(attention, *args, **kwargs)
        inputs = family.call_arguments(bound.arguments).inputs
        take(_weights(attend, project_value(inputs)))
        return original(attention, *args, **kwargs)

    return {
        "call": call,
        value_name: property(lambda _: others.get(value_name, project_value)),
        output_name: property(
            lambda _: others.get(output_name, project_output)
        ),
    }


def _weights(attend, value):
    """float32 `[B, H, n, n]`: what an attention multiplies values with.

    Args:
        attend: function of values `[B, n, K, D]` that returns `[B, n, H, D]`.
        value: some, for their shape and dtype.
    """
    length, width = value.shape[1], value.shape[3]
    weights = None
    for start in range(0, length, width):
        # Fused attentions want as many features as there were.
        identity = np.eye(length, width, -start)[None, :, None]
        identity = ops.convert_to_tensor(identity, value.dtype)
        output = attend(ops.broadcast_to(identity, ops.shape(value)))
        output = ops.convert_to_numpy(ops.cast(output, "float32"))
        output = output.transpose(0, 2, 1, 3)  # [B, H, n, D]
        if weights is None:
            weights = np.empty((*output.shape[:3], length), "float32")
        weights[..., start : start + width] = output[..., : length - start]
    return weights
