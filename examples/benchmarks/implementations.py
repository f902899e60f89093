"""One implementation of the causal sliding window against the portable path.

    python examples/benchmarks/implementations.py --backend tensorflow xla

Both take turns in one process, so that a busy machine slows both, and the
ratio is the median over the pairs: read the ratios. An implementation whose
values or gradients differ from those of the portable path gets no figure.
"""

import argparse
import functools
import importlib.metadata
import itertools
import os
import statistics
import sys
import time

import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("implementation", help='a name, as "xla"')
    parser.add_argument(
        "--backend", required=True, choices=("jax", "torch", "tensorflow")
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--windows", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--jit-compile",
        action="store_true",
        help="on TensorFlow: XLA compiles what is timed, whatever it is",
    )
    return parser.parse_args()


def make_compile(jit_compile):
    if not jit_compile:
        from keras_sa import autodiff

        return autodiff.compile
    import tensorflow as tf

    return functools.partial(tf.function, jit_compile=True)


def make_loss(window, implementation):
    """Function of query, key and value; the loss and the attention."""
    from keras import ops

    import keras_sa

    def loss(*tensors):
        output = keras_sa.ops.sliding_window_attention(
            *tensors,
            window_size=window,
            causal=True,
            implementation=implementation,
        )
        return ops.sum(output**2), output

    return loss


def make_functions(window, implementation, compile):
    """Functions compiled: forward, and forward and backward."""
    from keras_sa import autodiff

    loss = make_loss(window, implementation)
    return (
        compile(lambda *tensors: loss(*tensors)[1]),
        compile(
            lambda *tensors: autodiff.value_and_gradients(loss)(*tensors)[1]
        ),
    )


def agree(functions, inputs):
    """Whether all return the same, as far as 1e-4."""
    from keras import ops

    results = [function(*inputs) for function in functions]
    first, second = (
        [ops.convert_to_numpy(x) for x in result]
        if isinstance(result, tuple)
        else [ops.convert_to_numpy(result)]
        for result in results
    )
    return all(
        np.allclose(x, y, atol=1e-4, rtol=1e-4) for x, y in zip(first, second)
    )


def time_pairs(functions, inputs, rounds):
    """Seconds `[rounds, functions]`; the functions take turns."""
    from keras_sa import autodiff

    times = []
    for _ in range(rounds):
        pair = []
        for function in functions:
            # Untimed, to take back the memory that the one before gave back.
            autodiff.wait(function(*inputs))
            start = time.perf_counter()
            autodiff.wait(function(*inputs))
            pair.append(time.perf_counter() - start)
        times.append(pair)
    return times


def cells(functions, inputs, rounds):
    """Two medians in ms and the median of the ratios."""
    if not agree(functions, inputs):
        return ["differs", "no figure", ""]
    times = time_pairs(functions, inputs, rounds)
    medians = [1e3 * statistics.median(column) for column in zip(*times)]
    ratio = statistics.median(y / x for x, y in times)
    return [*(f"{median:.1f}" for median in medians), f"{ratio:.2f}"]


def main():
    arguments = parse_arguments()
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras import ops

    compile = make_compile(arguments.jit_compile)
    names = ("portable", arguments.implementation)
    version = importlib.metadata.version(arguments.backend)
    print(
        f"{arguments.backend} {version}, {os.cpu_count()} CPUs, float32, "
        f"B, H, D = {arguments.batch}, {arguments.heads}, "
        f"{arguments.head_dim}, medians of {arguments.rounds}, "
        f"jit_compile={arguments.jit_compile}\n"
    )
    print(f"| n | w | forward ms: {names[0]} | {names[1]} | ratio ", end="")
    print(f"| fwd + bwd ms: {names[0]} | {names[1]} | ratio |")
    print("|---" * 8 + "|")
    wrong = False
    for length, window in itertools.product(
        arguments.lengths, arguments.windows
    ):
        shape = (arguments.batch, length, arguments.heads, arguments.head_dim)
        random = np.random.default_rng(0)
        inputs = [
            ops.convert_to_tensor(random.normal(size=shape).astype("float32"))
            for _ in range(3)
        ]
        row = [str(length), str(window)]
        for functions in zip(
            *(make_functions(window, name, compile) for name in names)
        ):
            row += cells(functions, inputs, arguments.rounds)
        print("| " + " | ".join(row) + " |", flush=True)
        wrong = wrong or "differs" in row
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
