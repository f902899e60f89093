"""How fast every attention is, on the backend at hand.

    python examples/benchmarks/attention.py --backend jax

Times the attentions of `attention_table.py` and those of others in
`attention_peers.py`, forward and forward + backward, in one process and in
turn, so that a busy machine slows all of them: read the ratios. They are

- `x full`: how many times faster than the backend's own dense causal
  attention, `keras.ops.dot_product_attention(is_causal=True)`;
- `x bound`: how many times slower than the products that its pattern needs,
  at the faster of two float32 matrix products timed in the same run;
- against the others: time of ours over time of theirs, below 1 we win.

Keys per token are what a token attends to; gradients are those of the inputs.
Before an attention is timed, values and gradients are compared with dense
attention under the mask that it says it has, for a short text and at the same
shape (in up to 512 rows of long texts). A wrong one gets no figure.
"""

import argparse
import functools
import importlib.metadata
import itertools
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--backend", default="jax", choices=("jax", "torch", "tensorflow")
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--windows", type=int, nargs="+", default=[128])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--attentions",
        nargs="+",
        help='only those whose names begin so, as "full" "sliding"',
    )
    parser.add_argument(
        "--implementations",
        nargs="+",
        default=(),
        help="windows by these instead, each against the last named",
    )
    parser.add_argument(
        "--permutations",
        action="store_true",
        help="what a permutation costs: the same windows with and without",
    )
    parser.add_argument(
        "--jit-compile",
        action="store_true",
        help="on TensorFlow: XLA compiles what is timed, whatever it is",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="growth of peak memory too, in one process for each",
    )
    parser.add_argument("--output", type=pathlib.Path, help="a file for JSON")
    parser.add_argument(
        "--plots", type=pathlib.Path, help="a folder for plots; matplotlib"
    )
    return parser.parse_args(arguments)


def choose_backend(arguments):
    os.environ["KERAS_BACKEND"] = arguments.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def choose_compile(arguments):
    if arguments.jit_compile:
        import tensorflow as tf

        return functools.partial(tf.function, jit_compile=True)
    from keras_sa.backend import compile

    return compile


def choose_attentions(arguments):
    """The entries of the table that were asked for."""
    from examples.benchmarks import attention_peers
    from examples.benchmarks import attention_table

    table = (
        *attention_table.ATTENTIONS,
        *attention_peers.PEERS[arguments.backend],
    )
    if arguments.implementations:
        table = attention_table.named_implementations(arguments.implementations)
    if arguments.permutations:
        table = attention_table.permuted_attentions()
    if not arguments.attentions:
        return table
    wanted = tuple(arguments.attentions)
    return tuple(x for x in table if x.name.startswith(wanted))


def make_problems(arguments):
    from examples.benchmarks.attention_table import Problem

    return [
        Problem(
            batch=arguments.batch,
            length=length,
            heads=arguments.heads,
            head_dim=arguments.head_dim,
            window=window,
        )
        for window, length in itertools.product(
            arguments.windows, arguments.lengths
        )
    ]


def measure_problem(attentions, problem, arguments):
    """Everything about one problem."""
    from examples.benchmarks import attention_measuring

    compile = choose_compile(arguments)
    products = attention_measuring.measure_products(
        problem, arguments.rounds, compile
    )
    figures, refused = attention_measuring.measure(
        attentions, problem, arguments.rounds, compile
    )
    trusted = [x for x in attentions if x.name in figures]
    return {
        "products": products,
        "figures": figures,
        "refused": refused,
        "memory": measure_memory(trusted, problem, arguments),
    }


def measure_memory(attentions, problem, arguments):
    """MB by name; empty if not asked for."""
    if not arguments.memory:
        return {}
    from examples.benchmarks.attention_memory import grown_megabytes

    options = ["--backend", arguments.backend]
    if arguments.implementations:
        options += ["--implementations", *arguments.implementations]
    if arguments.jit_compile:
        options.append("--jit-compile")
    if arguments.permutations:
        options.append("--orders")
    return {x.name: grown_megabytes(x, problem, options) for x in attentions}


def describe(arguments):
    """What was run, for the head of the tables and for the file."""
    return {
        "backend": arguments.backend,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("keras", arguments.backend)
        },
        "cpus": os.cpu_count(),
        "batch": arguments.batch,
        "heads": arguments.heads,
        "head_dim": arguments.head_dim,
        "rounds": arguments.rounds,
        "jit_compile": arguments.jit_compile,
    }


def print_description(about):
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    print(
        f"{versions}, {about['cpus']} CPUs, float32, B, H, D = "
        f"{about['batch']}, {about['heads']}, {about['head_dim']}, "
        f"medians of {about['rounds']}, jit_compile={about['jit_compile']}"
    )


def failures(attentions, refused):
    """Names of what should have worked."""
    from examples.benchmarks.attention_measuring import FAILED
    from examples.benchmarks.attention_measuring import WRONG

    ours = {x.name for x in attentions if not (x.is_peer or x.may_refuse)}
    return [
        name
        for name, reason in refused.items()
        if reason.startswith(WRONG)
        or (name in ours and reason.startswith(FAILED))
    ]


def main():
    arguments = parse_arguments()
    choose_backend(arguments)
    from examples.benchmarks import attention_report

    about, attentions = describe(arguments), choose_attentions(arguments)
    print_description(about)
    records, failed = [], []
    for problem in make_problems(arguments):
        results = measure_problem(attentions, problem, arguments)
        attention_report.print_results(problem, attentions, results)
        records.append(attention_report.as_json(problem, results))
        failed += failures(attentions, results["refused"])
    if len(records) > 1:
        attention_report.print_summary(records)
    if arguments.output:
        attention_report.write_json(arguments.output, about, records)
    if arguments.plots:
        attention_report.write_plots(arguments.plots, about, records)
    if failed:
        sys.exit(f"No figure for {', '.join(failed)}")


if __name__ == "__main__":
    main()
