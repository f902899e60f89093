"""Gates of gated sums: variables that learn how much each term counts.

They live on the backbone, in a list that Keras tracks, so that they train, and
so that the variables of the model itself keep their paths.

Letters: `B` batch, `T` and `n` tokens, `F` features, `H` query heads, `P`
terms of a gated sum.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa.hub import _patching

GATES = "attention_gates"
_OPEN, _SHUT = 2.0, -2.0  # gates of 0.88 and 0.12
# A variable's path begins with the name scopes that its layer was made in.
_PATH = "(.*/)?attention_gate_[0-9]+/{name}"
# The axes before the heads: kernel `[F, P, H]`, bias `[P, H]`.
_LEADING_AXES = {"kernel": (None, None), "bias": (None,)}


@keras.saving.register_keras_serializable("keras_sa")
class AttentionGate(keras.layers.Layer):
    """Sigmoid gates from the features of the token, one per head and term.

    Its variables and arithmetic are float32 whatever the model's are: in half
    precision a bias of 2 does not move in small steps.

    Args:
        num_heads: number of query heads `H`.
        starts: where the biases of each term's gate start.

    Call arguments:
        inputs: `[B, T, F]`.

    Returns:
        A list of the gates of each term `[B, T, H, 1]`, float32.
    """

    def __init__(self, num_heads, starts=(0.0, 0.0), **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.num_heads = num_heads
        self.starts = tuple(float(start) for start in starts)

    def build(self, input_shape):
        num_terms = len(self.starts)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], num_terms, self.num_heads),
            initializer="zeros",
        )
        self.bias = self.add_weight(
            name="bias",
            shape=(num_terms, self.num_heads),
            initializer=self._start,
        )

    def _start(self, shape, dtype=None):
        start = [[start] for start in self.starts]
        return ops.zeros(shape, dtype) + ops.convert_to_tensor(start, dtype)

    def call(self, inputs):
        logits = ops.einsum("btf,fph->btph", inputs, self.kernel) + self.bias
        gates = ops.sigmoid(logits)[..., None]  # [B, T, P, H, 1]
        return ops.unstack(gates, num=len(self.starts), axis=2)

    def get_config(self):
        config = {"num_heads": self.num_heads, "starts": list(self.starts)}
        return {**super().get_config(), **config}


def make_gate(plan, num_features, starts):
    """A built gate for one attention layer.

    Args:
        plan: the `Plan` of the layer.
        num_features: of its inputs.
        starts: of the biases of each term's gate.
    """
    gate = AttentionGate(
        plan.family.num_query_heads(plan.attention),
        starts,
        name=f"attention_gate_{plan.index}",
    )
    gate.build((None, None, num_features))
    return gate


def default_starts(terms):
    """Where the biases of the gates of a gated sum start.

    One gate is open: that of the last term which is not random, as what
    pretrained weights come nearest to; of the last one if all are.
    """
    open_term = len(terms) - 1
    for index, term in enumerate(terms):
        if not term.is_random:
            open_term = index
    return tuple(
        _OPEN if index == open_term else _SHUT for index in range(len(terms))
    )


def check_gate_bias(gate_bias, gated):
    """Returns a tuple of floats, one for each term, or `None`.

    Args:
        gate_bias: as in `swap_attention`.
        gated: the gated patterns that are swapped in.
    """
    if gate_bias is None:
        return None
    counts = {len(pattern.terms) for pattern in gated}
    if not counts:
        raise ValueError(
            "`gate_bias` belongs to a gated sum, as Stochastic(w) + "
            "SlidingWindow(w): leave it out. "
            f"Received: gate_bias={gate_bias!r} and no gated sum"
        )
    if counts != {np.size(gate_bias)} or not _are_finite_numbers(gate_bias):
        raise ValueError(
            "`gate_bias` is expected to be finite numbers, one for each term: "
            f"{' or '.join(map(str, sorted(counts)))} in "
            f"{', '.join(map(repr, dict.fromkeys(gated)))}. "
            f"Received: gate_bias={gate_bias!r}"
        )
    return tuple(float(bias) for bias in gate_bias)


def _are_finite_numbers(values):
    values = np.asarray(values)
    is_number = values.dtype.kind in "iuf"
    return values.ndim == 1 and is_number and bool(np.isfinite(values).all())


def enable_lora_beside(backbone, gate_layers, models):
    """`backbone.enable_lora` that leaves the gates trainable.

    KerasHub freezes everything but the LoRA weights; gates are as new as they
    are.

    Args:
        backbone: the backbone.
        gate_layers: its gates.
        models: the models whose variables change.
    """
    original = backbone.enable_lora

    def enable_lora(*args, **kwargs):
        original(*args, **kwargs)
        for gate in gate_layers:
            gate.trainable = True
        for model in models:
            _patching.refresh_parameters(model)

    return enable_lora


def train_only_gates(model):
    """Freezes all of a swapped model but its gates.

    Args:
        model: a model with a gated sum of patterns swapped in.

    Raises:
        ValueError: if the model has no gates.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.patterns import SlidingWindow, Stochastic
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> pattern = Stochastic(8) + SlidingWindow(8)
    >>> swap = hub.swap_attention(backbone, pattern)
    >>> hub.train_only_gates(backbone)
    >>> len(backbone.trainable_variables)
    4
    """
    _patching.train_only(model, gates_of(model))


def gates_of(model):
    """The gates of a swapped model.

    Raises:
        ValueError: if there are none.
    """
    backbone = getattr(model, "backbone", model)
    gate_layers = getattr(backbone, GATES, None)
    if not gate_layers:
        raise ValueError(
            "`model` is expected to have gates: swap a gated sum in, as "
            "`keras_sa.hub.swap_attention(model, Stochastic(w) + "
            f"SlidingWindow(w))`. Received: {model!r}, without gates"
        )
    return list(gate_layers)


# Reading them.


def gate_values(model, inputs):
    """The mean gate of each term and head, for each layer with gates.

    A gate is a function of the token: its bias alone would not tell. The mean
    is over the tokens of `inputs` without padding. To look again and again
    while a model trains, keep a `GateMeter`.

    Args:
        model: a model with a gated sum of patterns swapped in.
        inputs: what the backbone is called on, such as a dict of `token_ids`
            and `padding_mask`, `[B, n]`.

    Returns:
        A list with a numpy array `[P, H]` for each layer with gates, which
        are the `gated_layers` of the swap, in the order of the terms.

    Raises:
        ValueError: if the model has no gates.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.patterns import SlidingWindow, Stochastic
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> pattern = Stochastic(8) + SlidingWindow(8)
    >>> swap = hub.swap_attention(backbone, pattern)
    >>> inputs = {
    ...     "token_ids": keras.ops.ones((1, 10), "int32"),
    ...     "padding_mask": keras.ops.ones((1, 10), "int32"),
    ... }
    >>> hub.gate_values(backbone, inputs)[0].shape
    (2, 2)
    """
    return GateMeter(model).measure(inputs)


class GateMeter(keras.Model):
    """`gate_values` in a loop: compiled once for inputs of a shape.

    Args:
        model: a model with a gated sum of patterns swapped in.

    Call arguments:
        inputs: of the backbone.

    Returns:
        For each layer with gates their sums over the real tokens
        `[B, P, H]`, and last the numbers of these tokens `[B]`. `measure`
        makes means of them.

    Raises:
        ValueError: if the model has no gates.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.patterns import SlidingWindow, Stochastic
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> pattern = Stochastic(8) + SlidingWindow(8)
    >>> swap = hub.swap_attention(backbone, pattern)
    >>> meter = hub.GateMeter(backbone)
    >>> meter.measure({
    ...     "token_ids": keras.ops.ones((1, 10), "int32"),
    ...     "padding_mask": keras.ops.ones((1, 10), "int32"),
    ... })[0].mean(axis=1).round(2)
    array([0.12, 0.88], dtype=float32)
    """

    def __init__(self, model):
        super().__init__()
        self.gates = gates_of(model)
        self.backbone = _patching.backbone_of(model)
        self.built = True  # or Keras calls it eagerly, to build it

    def call(self, inputs):
        with _recording(self.gates) as seen:
            self.backbone(inputs, training=False)
        real = _real_tokens(inputs, seen[0][0])
        sums = [_sum_over_tokens(paths, real) for paths in seen]
        return [*sums, ops.sum(real, axis=1)]

    def measure(self, inputs):
        """The means over the tokens of a batch, without padding.

        Args:
            inputs: of the backbone.

        Returns:
            As `gate_values`.

        Raises:
            ValueError: if the gates are no longer those of the model.
        """
        if gates_of(self.backbone) != list(self.gates):
            raise ValueError(
                "A `GateMeter` is expected to be used under the swap that it "
                "was made under: make another one after swapping again. "
                "Received: a model with other gates"
            )
        *sums, counts = self.predict_on_batch(inputs)
        return [layer.sum(axis=0) / np.sum(counts) for layer in sums]


def _real_tokens(inputs, gate):
    """1 for tokens and 0 for padding, float32 `[B, n]`."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    if mask is None:
        mask = ops.ones_like(gate[:, :, 0, 0])
    return ops.cast(mask, "float32")


def _sum_over_tokens(paths, real):
    """`[B, P, H]` of gates `[B, n, H, 1]`."""
    gates = ops.stack([ops.cast(x[..., 0], "float32") for x in paths], axis=1)
    return ops.einsum("bpnh,bn->bph", gates, real)


@contextlib.contextmanager
def _recording(gates):
    """A list that gets the gates `[B, n, H, 1]` of every call."""
    seen = []

    def recorded(call):
        def call_and_record(inputs):
            seen.append(call(inputs))
            return seen[-1]

        return call_and_record

    with contextlib.ExitStack() as stack:
        for gate in gates:
            call = recorded(gate.call)
            _patching.set_attributes(stack, gate, {"call": call})
        yield seen


# Sharding them.


def add_gate_layouts(layout_map, num_heads, model_axis="model"):
    """Shards gates by heads under `keras.distribution.ModelParallel`.

    Adds two entries to a layout map: for the kernels and for the biases of
    gates that `swap_attention` is to make of gated sums. Where the
    devices do not divide the heads, or without these entries, every device
    holds all gates, which computes the same.

    Args:
        layout_map: the `keras.distribution.LayoutMap` of the model, such as
            `keras_hub.models.LlamaBackbone.get_layout_map` returns. It is
            changed in place.
        num_heads: number of query heads `H` of the model.
        model_axis: name of the axis of the mesh that the heads go over.

    Raises:
        ValueError: for anything but a layout map with a mesh that has the
            axis, or if the map has these entries already.

    Example:

    >>> from keras_sa import hub
    >>> mesh = keras.distribution.DeviceMesh(
    ...     (2, 4), ("batch", "model"), devices=[f"tpu:{i}" for i in range(8)]
    ... )
    >>> layout_map = keras.distribution.LayoutMap(mesh)
    >>> hub.add_gate_layouts(layout_map, num_heads=32)
    >>> layout_map["attention_gate_0/kernel"].axes
    (None, None, 'model')

    Reference:
        https://keras.io/guides/distribution
    """
    devices = _axis_size(layout_map, model_axis)
    _validation.check_positive_int("num_heads", num_heads)
    heads = model_axis if num_heads % devices == 0 else None
    for name, leading_axes in _LEADING_AXES.items():
        layout_map[_PATH.format(name=name)] = (*leading_axes, heads)


def _axis_size(layout_map, axis):
    """How many devices the mesh has along an axis."""
    mesh = getattr(layout_map, "device_mesh", None)
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise ValueError(
            "`layout_map` is expected to be a `keras.distribution.LayoutMap` "
            f"with a device mesh. Received: layout_map={layout_map!r}"
        )
    _validation.check_one_of("model_axis", axis, mesh.axis_names)
    return mesh.shape[mesh.axis_names.index(axis)]
