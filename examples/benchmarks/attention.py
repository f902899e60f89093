"""How many times faster than full attention, on the backend at hand.

    python examples/benchmarks/attention.py --backend jax

Times every attention of the package against the backend's own dense causal
attention, `keras.ops.dot_product_attention(is_causal=True)`, in one process
and in turn, so that a busy machine slows all of them: read the ratios. Before
an implementation is timed, its values and gradients are compared with the
dense oracle at the same shape; a wrong one gets no figure.
"""

import argparse
import importlib.metadata
import os
import statistics
import sys
import time

import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--backend", default="jax", choices=("jax", "torch", "tensorflow")
    )
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def attentions(length, window):
    """Name to function of query, key and value; the first is the reference."""
    from keras import ops

    import keras_sa

    permutation = keras_sa.ops.sample_permutation(length, seed=0)

    def full(query, key, value):
        return ops.dot_product_attention(query, key, value, is_causal=True)

    def sliding_window(query, key, value):
        return keras_sa.ops.sliding_window_attention(
            query, key, value, window_size=window, causal=True
        )

    def stochastic(neighborhood):
        def attend(query, key, value):
            return keras_sa.ops.stochastic_attention(
                query,
                key,
                value,
                permutation,
                window_size=window,
                neighborhood=neighborhood,
                causal=True,
            )

        return attend

    def block_routed(query, key, value):
        return keras_sa.ops.block_routed_attention(
            query, key, value, block_size=window, top_k=3, causal=True
        )

    return {
        "full": full,
        "sliding window": sliding_window,
        "stochastic, window": stochastic("window"),
        "stochastic, block": stochastic("block"),
        "block-routed, top 3": block_routed,
    }


def visible_keys(length, window):
    from keras_sa.ops.patterns import visible_keys_per_token

    return {
        name: visible_keys_per_token(length, window, causal=True, **pattern)
        for name, pattern in {
            "full": {"pattern": "full"},
            "sliding window": {"pattern": "sliding_window"},
            "stochastic, window": {"pattern": "stochastic"},
            "stochastic, block": {
                "pattern": "stochastic",
                "neighborhood": "block",
            },
            "block-routed, top 3": {"pattern": "block_routed", "top_k": 3},
        }.items()
    }


def loss_of(attend):
    from keras import ops

    def loss(query, key, value):
        # Weighted by position: a plain sum would hide a wrong order.
        weight = ops.linspace(0.5, 1.5, query.shape[1])[None, :, None, None]
        return ops.sum(attend(query, key, value) * weight)

    return loss


def is_right(name, attend, inputs, window):
    """Whether values and gradients agree with the oracle, as far as 1e-4."""
    from keras import ops

    import keras_sa
    from keras_sa import autodiff
    from keras_sa.ops import patterns
    from keras_sa.ops.block_routed_attention import routed_blocks

    query, key, _ = inputs
    length = query.shape[1]
    if name == "full":
        return True
    if name == "block-routed, top 3":
        routes = routed_blocks(
            query, key, block_size=window, top_k=3, causal=True
        )
        mask = patterns.block_routed_mask(routes, window, causal=True)
    elif name == "sliding window":
        mask = patterns.sliding_window_mask(length, window, causal=True)
    else:
        permutation = keras_sa.ops.sample_permutation(length, seed=0)
        mask = patterns.stochastic_mask(
            permutation, window, name.split(", ")[1], causal=True
        )

    def oracle(query, key, value):
        return keras_sa.ops.dense_attention(query, key, value, mask)

    results = [
        autodiff.compile(autodiff.value_and_gradients(loss_of(function)))(
            *inputs
        )
        for function in (attend, oracle)
    ]
    (value, gradients), (expected_value, expected_gradients) = results
    pairs = [(value, expected_value), *zip(gradients, expected_gradients)]
    return all(
        np.allclose(
            ops.convert_to_numpy(received),
            ops.convert_to_numpy(expected),
            atol=1e-4,
            rtol=1e-4,
        )
        for received, expected in pairs
    )


def time_in_turn(functions, inputs, rounds):
    """Median seconds of each function; all of them take turns."""
    from keras_sa import autodiff

    times = {name: [] for name in functions}
    for function in functions.values():
        autodiff.wait(function(*inputs))  # compiles
    for _ in range(rounds):
        for name, function in functions.items():
            # Untimed, to take back the memory that the one before gave back.
            autodiff.wait(function(*inputs))
            start = time.perf_counter()
            autodiff.wait(function(*inputs))
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    arguments = parse_arguments()
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras import ops

    from keras_sa import autodiff

    random = np.random.default_rng(0)
    shape = (
        arguments.batch,
        arguments.length,
        arguments.heads,
        arguments.head_dim,
    )
    inputs = [
        ops.convert_to_tensor(random.normal(size=shape).astype("float32"))
        for _ in range(3)
    ]
    functions = attentions(arguments.length, arguments.window)
    wrong = [
        name
        for name, attend in functions.items()
        if not is_right(name, attend, inputs, arguments.window)
    ]
    functions = {k: v for k, v in functions.items() if k not in wrong}
    forward = {k: autodiff.compile(v) for k, v in functions.items()}
    backward = {
        k: autodiff.compile(autodiff.value_and_gradients(loss_of(v)))
        for k, v in functions.items()
    }
    forward = time_in_turn(forward, inputs, arguments.rounds)
    backward = time_in_turn(backward, inputs, arguments.rounds)

    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in ("keras", arguments.backend)
    )
    print(
        f"{versions}, {os.cpu_count()} CPUs, float32, B, n, H, D = {shape}, "
        f"w = {arguments.window}, medians of {arguments.rounds}\n"
    )
    print("| attention | keys/token | forward ms | x | fwd + bwd ms | x |")
    print("|---|---|---|---|---|---|")
    keys = visible_keys(arguments.length, arguments.window)
    for name in functions:
        print(
            f"| {name} | {keys[name]:.0f} "
            f"| {1e3 * forward[name]:.1f} "
            f"| {forward['full'] / forward[name]:.1f} "
            f"| {1e3 * backward[name]:.1f} "
            f"| {backward['full'] / backward[name]:.1f} |"
        )
    for name in wrong:
        print(f"| {name} | differs from the oracle: no figure | | | | |")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
