"""Trains on one device and on two mirrored ones; prints the outcome as JSON."""

import contextlib
import json

import tensorflow as tf

# Before anything makes a tensor.
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)

from tests.hub.distribution import training  # noqa: E402


def run(swap, scope):
    with scope:
        causal_lm = training.build("llama", swap)
    # Keras 3.15 takes the mean of the first batch over the replicas, which
    # TensorFlow has none of for booleans: any model with such an input fails.
    result = training.fit(causal_lm, mask_dtype="int32")
    if swap == "gates":
        result["tokens"] = training.generate(causal_lm)
    return result


if __name__ == "__main__":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    results = {
        swap: {
            "one": run(swap, contextlib.nullcontext()),
            "many": run(swap, strategy.scope()),
        }
        for swap in ("gates", "stochastic")
    }
    print(json.dumps(results))
