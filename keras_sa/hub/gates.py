"""The gates of a swapped model: variables that learn how much to hear of each
path.

They live on the backbone, in lists that Keras tracks, so that they train, and
so that the variables of the model itself keep their paths.
"""

import keras
from keras import ops

GATES = "attention_gates"
SEED_GENERATORS = "attention_permutations"


@keras.saving.register_keras_serializable("keras_sa")
class AttentionGate(keras.layers.Layer):
    """Sigmoid gates from the features of the token, one per head and path.

    Args:
        num_heads: number of query heads `H`.
        starts: where the biases of each path's gate start.

    Call arguments:
        inputs: `[B, T, F]`.

    Returns:
        A list of the gates of each path `[B, T, H, 1]`.
    """

    def __init__(self, num_heads, starts=(0.0, 0.0), **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.starts = tuple(float(start) for start in starts)

    def build(self, input_shape):
        num_paths = len(self.starts)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], num_paths, self.num_heads),
            initializer="zeros",
        )
        self.bias = self.add_weight(
            name="bias",
            shape=(num_paths, self.num_heads),
            initializer=self._start,
        )

    def _start(self, shape, dtype=None):
        start = [[start] for start in self.starts]
        return ops.zeros(shape, dtype) + ops.convert_to_tensor(start, dtype)

    def call(self, inputs):
        logits = ops.einsum("btf,fph->btph", inputs, self.kernel) + self.bias
        gates = ops.sigmoid(logits)[..., None]  # [B, T, paths, H, 1]
        return ops.unstack(gates, num=len(self.starts), axis=2)

    def get_config(self):
        config = {"num_heads": self.num_heads, "starts": list(self.starts)}
        return {**super().get_config(), **config}


def make_gate(attention, num_heads, num_features, index, starts):
    """A built gate for one attention layer, in its precision.

    Args:
        attention: the attention layer.
        num_heads: its number of query heads.
        num_features: of its inputs.
        index: of the layer in the backbone.
        starts: of the biases of each path's gate.
    """
    gate = AttentionGate(
        num_heads,
        starts,
        dtype=_dtype_policy(attention),
        name=f"attention_gate_{index}",
    )
    gate.build((None, None, num_features))
    return gate


def _dtype_policy(layer):
    """The layer's precision without its quantization."""
    compute, variable = layer.compute_dtype, layer.variable_dtype
    return compute if compute == variable else f"mixed_{compute}"


def attach(backbone, name, values):
    """Sets a tracked list on a built backbone."""
    if values:
        setattr(backbone, name, list(values))


def detach(backbone, name):
    """Takes a tracked list off a backbone, and its variables with it."""
    if hasattr(backbone, name):
        getattr(backbone, name).clear()
        delattr(backbone, name)


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
            refresh_parameters(model)

    return enable_lora


def refresh_parameters(model):
    """Shows torch the variables that a model has now.

    KerasHub 0.32 shows it none: its models' `parameters()` are empty.
    """
    if keras.config.backend() == "torch":
        model._track_variables()


def refresh_optimizer(model):
    """Gives a model whose variables changed an optimizer like its own."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        model.optimizer = optimizer.from_config(optimizer.get_config())


def train_only_gates(model):
    """Freezes all of a swapped model but its gates.

    Args:
        model: a model under `swap_attention(..., "small_world")`.

    Raises:
        ValueError: if the model has no gates.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> swap = hub.swap_attention(backbone, "small_world", window_size=8)
    >>> hub.train_only_gates(backbone)
    >>> len(backbone.trainable_variables)
    4
    """
    gate_layers = gates_of(model)
    for layer in model._flatten_layers(include_self=False):
        layer.trainable = False
    # A frozen layer hides the variables of those in it.
    backbone = getattr(model, "backbone", model)
    for layer in (model, backbone):
        layer._trainable = True
    for gate in gate_layers:
        gate.trainable = True
    refresh_optimizer(model)


def gates_of(model):
    """The gates of a swapped model.

    Raises:
        ValueError: if there are none.
    """
    backbone = getattr(model, "backbone", model)
    gate_layers = getattr(backbone, GATES, None)
    if not gate_layers:
        raise ValueError(
            "`model` is expected to have gates: swap them in with "
            "`keras_sa.hub.swap_attention(model, 'small_world', "
            f"window_size=...)`. Received: {model!r}, without gates"
        )
    return list(gate_layers)
