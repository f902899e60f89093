"""Decoders with ALiBi: a bias on the scores, linear in the key's position.

KerasHub adds it inside the attention's `call`, where there is no method to
replace; so `call` is written anew here, and the bias goes into the scores as
one more channel of queries and keys.
"""

import dataclasses

from keras import ops

from keras_sa.hub import _patching
from keras_sa.hub.families.family import Family
from keras_sa.hub.families.family import first


@dataclasses.dataclass(frozen=True)
class AlibiFamily(Family):
    """An ALiBi decoder.

    Args:
        projections: the attention's attributes that project queries, keys,
            values and outputs.
        dropout_layer: its attribute for the dropout on the attention weights.
        drops_output: whether the same dropout follows the output projection.
    """

    mask_method: str = _patching.ATTENTION_MASK
    key_value_groups: str | None = None
    projections: tuple = ()
    dropout_layer: str = ""
    drops_output: bool = False

    def num_query_heads(self, attention):
        return attention.num_heads

    def num_key_value_heads(self, attention):
        return attention.num_heads

    def scale(self, attention):
        return attention.inv_norm_factor

    def dropout(self, attention):
        layer = getattr(attention, self.dropout_layer)
        return layer.rate, layer.seed_generator if layer.rate else None

    def call(self, attention, attend, arguments):
        """The attention's `call` with another softmax.

        Args:
            attention: the attention layer.
            attend: function of query `[B, T, H, D]`, key and value
                `[B, S, H, D]` and the mask.
            arguments: those of `call`, by name.
        """
        project_query, project_key, project_value, project_output = (
            getattr(attention, name) for name in self.projections
        )
        inputs = first(arguments, "hidden_states", "inputs")
        query = project_query(inputs)
        key, value = project_key(inputs), project_value(inputs)
        cache = arguments.get("cache")
        if cache is not None:
            start = [0, arguments["cache_update_index"], 0, 0]
            key = ops.slice_update(cache[:, 0], start, key)
            value = ops.slice_update(cache[:, 1], start, value)
            cache = ops.stack((key, value), axis=1)
        output = attend(query, key, value, arguments.get("attention_mask"))
        batch_size, length = ops.shape(inputs)[:2]
        output = ops.reshape(output, (batch_size, length, -1))
        output = project_output(output)
        if self.drops_output:
            output = getattr(attention, self.dropout_layer)(output)
        return output if cache is None else (output, cache)
