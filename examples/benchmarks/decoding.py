"""What a step of decoding costs as the cache grows.

    python examples/benchmarks/decoding.py --backend jax

Times, in one process and in turn, for caches of several lengths:

- attention alone: to the whole cache, as KerasHub computes it, and to the
  neighbors in a pattern, `decode="pattern"`;
- the attention layer around it: projections, and the copies of the cache that
  KerasHub makes at every step (it writes the new key and value, and stacks
  keys and values again), which no swap can leave out.

Read how each row grows; times are medians, and the machine may be busy.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--backend", default="jax", choices=("jax", "torch", "tensorflow")
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[2048, 8192, 32768, 65536]
    )
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--key-value-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=21)
    return parser.parse_args()


def build_backbone(arguments):
    """One decoder layer of a Qwen3."""
    import keras_hub

    return keras_hub.models.Qwen3Backbone(
        vocabulary_size=16,
        num_layers=1,
        num_query_heads=arguments.heads,
        num_key_value_heads=arguments.key_value_heads,
        head_dim=arguments.head_dim,
        hidden_dim=arguments.heads * arguments.head_dim,
        intermediate_dim=16,
    )


def attention_alone(arguments, backbone, length):
    """Name to a compiled function without arguments."""
    import keras
    from keras import ops

    from keras_sa import backend as keras_backend
    from keras_sa.ops import neighbor_attention
    from keras_sa.patterns import SlidingWindow
    from keras_sa.patterns import Stochastic

    attention = backbone.transformer_layers[0]._self_attention_layer
    heads, dim = arguments.heads, arguments.head_dim
    shape = (1, length, arguments.key_value_heads, dim)
    query = keras.random.normal((1, 1, heads, dim), seed=0)
    key, value = (keras.random.normal(shape, seed=s) for s in (1, 2))
    index = ops.convert_to_tensor(length - 1, "int32")

    def full(query, key, value, index):
        group = heads // arguments.key_value_heads
        key, value = (ops.repeat(x, group, axis=2) for x in (key, value))
        mask = ops.arange(length, dtype="int32") <= index
        return attention._compute_attention(
            query, key, value, ops.reshape(mask, (1, 1, length))
        )

    def within(pattern):
        drawn = pattern.draw(length, seed=0)

        def attend(query, key, value, index):
            neighbors = pattern.neighbors(
                length,
                is_causal=True,
                seed=drawn,
                positions=ops.reshape(index, (1,)),
            )
            return neighbor_attention(
                query, key, value, neighbors, scale=dim**-0.5
            )

        return attend

    tensors = (query, key, value, index)
    timed = {
        "attention: whole cache": full,
        "attention: sliding window": within(SlidingWindow(arguments.window)),
        "attention: stochastic window": within(Stochastic(arguments.window)),
    }
    return {
        name: bind(keras_backend.compile(function), tensors)
        for name, function in timed.items()
    }


def layer_around(arguments, backbone, length):
    """The attention layer as KerasHub calls it, and the copies in it."""
    import keras
    from keras import ops

    from keras_sa import backend as keras_backend

    layer = backbone.transformer_layers[0]._self_attention_layer
    x = keras.random.normal((1, 1, backbone.hidden_dim), seed=3)
    shape = (1, 2, length, arguments.key_value_heads, arguments.head_dim)
    cache = keras.random.normal(shape, seed=4)
    index = ops.convert_to_tensor(length - 1, "int32")

    def call(x, cache, index):
        mask = ops.arange(length, dtype="int32") <= index
        return layer(
            x,
            attention_mask=ops.reshape(mask, (1, 1, length)),
            cache=cache,
            cache_update_index=index,
        )

    def copies(x, cache, index):
        key, value = (
            ops.slice_update(
                cache[:, i], [0, index, 0, 0], cache[:, i, :1] + x[0, 0, 0]
            )
            for i in (0, 1)
        )
        return ops.stack((key, value), axis=1)

    tensors = (x, cache, index)
    return [
        bind(keras_backend.compile(function), tensors)
        for function in (call, copies)
    ]


def bind(function, tensors):
    return lambda: function(*tensors)


def medians(functions, rounds):
    """Milliseconds of each; in turn, so that all share the noise."""
    from keras_sa import backend as keras_backend

    seconds = [[] for _ in functions]
    for function in functions:
        keras_backend.wait(function())  # compiles
    for _ in range(rounds):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            keras_backend.wait(function())
            seconds[index].append(time.perf_counter() - start)
    return [1e3 * statistics.median(s) for s in seconds]


def functions_at(arguments, backbone, swapped, length):
    layer, copies = layer_around(arguments, backbone, length)
    windowed, _ = layer_around(arguments, swapped, length)
    return {
        **attention_alone(arguments, backbone, length),
        "layer: whole cache": layer,
        "layer: sliding window": windowed,
        "of it, KerasHub's copies of the cache": copies,
    }


def main():
    arguments = parse_arguments()
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_sa import hub
    from keras_sa.patterns import SlidingWindow

    backbone, swapped = (build_backbone(arguments) for _ in range(2))
    hub.swap_attention(
        swapped, SlidingWindow(arguments.window), decode="pattern"
    )
    columns = [
        functions_at(arguments, backbone, swapped, length)
        for length in arguments.lengths
    ]
    header = " | ".join(f"{length:,}" for length in arguments.lengths)
    print(
        f"milliseconds a step, window {arguments.window}, {arguments.backend}"
    )
    print(f"| rows of the cache | {header} | last / first |")
    print("|---" * (len(columns) + 2) + "|")
    for name in columns[0]:
        row = medians([column[name] for column in columns], arguments.rounds)
        cells = " | ".join(f"{value:.3f}" for value in row)
        print(f"| {name} | {cells} | {row[-1] / row[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
