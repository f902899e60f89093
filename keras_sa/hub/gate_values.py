"""How much a model with gates hears of each path.

Letters: `B` batch, `n` tokens, `H` query heads, `P` paths of a layer: the
stochastic and the local one, or the local one alone.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from keras_sa.hub.backbones import backbone_of
from keras_sa.hub.gates import gates_of


def gate_values(model, inputs):
    """The mean gate of each path and head, for each layer with gates.

    A gate is a function of the token: its bias alone would not tell. The mean
    is over the tokens of `inputs` without padding. To look again and again
    while a model trains, keep a `GateMeter`.

    Args:
        model: a model under `swap_attention(..., "small_world")`.
        inputs: what the backbone is called on, such as a dict of `token_ids`
            and `padding_mask`, `[B, n]`.

    Returns:
        A list with a numpy array `[P, H]` for each layer with gates, which
        are the `gated_layers` of the swap: of the stochastic and the local
        path; of the local one alone where a sliding window has a gate.

    Raises:
        ValueError: if the model has no gates.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> swap = hub.swap_attention(backbone, "small_world", window_size=8)
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
        model: a model under `swap_attention(..., "small_world")`.

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
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> swap = hub.swap_attention(backbone, "small_world", window_size=8)
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
        self.backbone = backbone_of(model)
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

    for gate in gates:
        # Not `gate.call =`: Keras tracks what is set on a layer.
        object.__setattr__(gate, "call", recorded(gate.call))
    try:
        yield seen
    finally:
        for gate in gates:
            object.__delattr__(gate, "call")
