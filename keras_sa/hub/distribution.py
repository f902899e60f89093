"""Layouts of the gates over a mesh of devices.

Letters: `F` features, `H` query heads.
"""

import keras

from keras_sa import _validation

# A variable's path begins with the name scopes that its layer was made in.
_PATH = "(.*/)?attention_gate_[0-9]+/{name}"
# The axes before the heads: kernel `[F, 2, H]`, bias `[2, H]`.
_LEADING_AXES = {"kernel": (None, None), "bias": (None,)}


def add_gate_layouts(layout_map, num_heads, model_axis="model"):
    """Shards gates by heads under `keras.distribution.ModelParallel`.

    Adds two entries to a layout map: for the kernels and for the biases of
    gates that `swap_attention(..., "small_world")` is to make. Where the
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
