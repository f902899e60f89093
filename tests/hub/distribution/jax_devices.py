"""Trains on one device and on eight, and prints what came out as JSON.

    python jax_devices.py data_parallel

The devices have to be there: XLA_FLAGS=--xla_force_host_platform_device_count=8
"""

import contextlib
import json
import sys

import keras
import keras_hub

from keras_sa import hub
from tests.hub import models
from tests.hub.distribution import training

NUM_HEADS = models.GROUPED_HEADS["num_query_heads"]


def data_parallel():
    return keras.distribution.DataParallel()


def model_parallel(family, mesh_shape):
    """The layouts of the family, and those of the gates."""
    mesh = keras.distribution.DeviceMesh(mesh_shape, ("batch", "model"))
    backbone = f"{models.FAMILIES[family].model}Backbone"
    layout_map = getattr(keras_hub.models, backbone).get_layout_map(mesh)
    return with_gates(layout_map)


def more_devices_than_heads():
    """KerasHub's layouts would shard the heads themselves; this one can't."""
    mesh = keras.distribution.DeviceMesh((1, 8), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*feedforward_(gate|intermediate)_dense/kernel"] = (
        None,
        "model",
    )
    return with_gates(layout_map)


def with_gates(layout_map):
    hub.add_gate_layouts(layout_map, NUM_HEADS)
    return keras.distribution.ModelParallel(
        layout_map=layout_map, batch_dim_name="batch"
    )


def run(family, swap, scope):
    with scope:
        causal_lm = training.build(family, swap)
        result = training.fit(causal_lm)
        result["tokens"] = training.generate(causal_lm)
    # The shape of what one device holds, after training.
    result["shards"] = {
        variable.path: variable.value.sharding.shard_shape(variable.shape)
        for variable in causal_lm.trainable_variables
    }
    return result


def compare(distribution, swaps, family="llama"):
    return {
        swap: {
            "one": run(family, swap, contextlib.nullcontext()),
            "many": run(family, swap, distribution.scope()),
        }
        for swap in swaps
    }


SCENARIOS = {
    "data_parallel": lambda: compare(data_parallel(), ["gates", "stochastic"]),
    "model_parallel": lambda: compare(
        model_parallel("llama", (2, 4)), ["gates_resampled", "stochastic"]
    ),
    # Its layouts put the two key/value heads on the model axis.
    "model_parallel_gemma": lambda: compare(
        model_parallel("gemma", (4, 2)), ["gates"], "gemma"
    ),
    "more_devices_than_heads": lambda: compare(
        more_devices_than_heads(), ["gates"]
    ),
}


if __name__ == "__main__":
    assert len(keras.distribution.list_devices()) == 8
    print(json.dumps(SCENARIOS[sys.argv[1]]()))
