"""The same kernels on JAX: numerics of some cases, and a few timings.

Part of `gpu.py`, which runs it as a process of its own: KERAS_BACKEND is jax
here. Prints lines of JSON for each result, and other lines to be shown.

Letters: `n` tokens, `H` heads, `D` head dim.
"""

import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

CASES = (
    "sliding-left_sinks",
    "window-per_head_left_causal",
    "window-exclude_local",
    "block-ragged_causal",
)
LENGTHS, HEADS, HEAD_DIM, WINDOW = (8192, 32768, 2048), 16, 64, 256
DTYPES = ("float32", "bfloat16")
MIN_SECONDS = 30


def run_section(report, budget, is_rehearsal):
    """Runs this file and collects what it reports."""
    missing = [
        name
        for name in ("jax", *(() if is_rehearsal else ("jax_triton",)))
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        report["skipped"] = f"not installed: {', '.join(missing)}"
        print(report["skipped"], flush=True)
        return
    if not budget.has("jax", MIN_SECONDS):
        return
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    process = subprocess.Popen(
        [sys.executable, __file__, str(int(is_rehearsal))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    alarm = threading.Timer(budget.left(), process.kill)
    alarm.start()
    report["results"] = []
    for line in process.stdout:
        if line.startswith('{"'):
            report["results"].append(json.loads(line))
        print(line, end="", flush=True)
    alarm.cancel()
    report["status"] = process.wait()
    print(f"ended with status {report['status']}", flush=True)


def say(**result):
    print(json.dumps(result), flush=True)


def check_case(case, dtype, implementation):
    from tests import testing

    inputs = testing.make_inputs(case, dtype)
    exact, dense = testing.references(case, dtype)
    runner = testing.case_runner(case, implementation, dtype)
    actual = runner(inputs, dtype)
    passed, errors = True, {}
    pairs = {"output": (actual.output, exact.output, dense.output)}
    for name, gradient in actual.gradients.items():
        pairs[name] = gradient, exact.gradients[name], dense.gradients[name]
    for name, (mine, right, rounded) in pairs.items():
        errors[name] = testing.relative_error(mine, right)
        own = testing.relative_error(testing.round_to(rounded, dtype), right)
        bound = testing.KERNEL_BOUNDS[dtype][name != "output"]
        passed &= errors[name] <= max(bound, 4 * own)
    return {"errors": errors, "passed": passed}


def check_cases(is_rehearsal):
    """Whether all the cases passed."""
    from tests import testing

    cases = {case.name: case for case in testing.CASES}
    implementation = "portable" if is_rehearsal else "triton"
    all_passed = True
    for name in CASES[2:3] if is_rehearsal else CASES:
        for dtype in ("float32",) if is_rehearsal else DTYPES:
            try:
                result = check_case(cases[name], dtype, implementation)
            except Exception:
                result = {"passed": False, "failure": traceback.format_exc()}
            all_passed &= result["passed"]
            say(numerics=name, dtype=dtype, **result)
    return all_passed


def attentions(length, is_rehearsal):
    """The stochastic window and full causal attention by cuDNN."""
    import jax

    from keras_sa.ops import sample_permutation
    from keras_sa.ops.inputs import check_inputs
    from keras_sa.ops.windowed.stochastic import attend_in_order

    permutation = sample_permutation(length, seed=7)

    def stochastic(query, key, value):
        return attend_in_order(
            check_inputs(query, key, value, is_causal=True),
            permutation,
            window_size=min(WINDOW, length // 4),
            neighborhood="window",
            implementation="portable" if is_rehearsal else "triton",
        )

    def full(query, key, value):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            implementation="xla" if is_rehearsal else "cudnn",
        )

    return {"stochastic window": stochastic, "full, cuDNN": full}


def with_gradients(function):
    import jax

    def run(query, key, value, output_gradient):
        output, backward = jax.vjp(function, query, key, value)
        return output, *backward(output_gradient)

    return run


def milliseconds(function, inputs, repeats):
    """Median of batches of calls; the calls of a batch wait in a queue."""
    import jax

    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*inputs))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        results = [compiled(*inputs) for _ in range(4)]
        jax.block_until_ready(results)
        times.append(1e3 * (time.perf_counter() - start) / 4)
    return statistics.median(times)


def time_all(is_rehearsal):
    import jax

    repeats = 2 if is_rehearsal else 10
    for length in (64,) if is_rehearsal else LENGTHS:
        shape = (1, length, HEADS, HEAD_DIM)
        inputs = [
            jax.random.normal(jax.random.key(seed), shape, "bfloat16")
            for seed in range(4)
        ]
        for name, function in attentions(length, is_rehearsal).items():
            try:
                forward = milliseconds(function, inputs[:3], repeats)
                both = milliseconds(with_gradients(function), inputs, repeats)
            except Exception:
                say(timing=name, length=length, failure=traceback.format_exc())
                continue
            figures = {"forward": forward, "forward + backward": both}
            say(timing=name, length=length, milliseconds=figures)


def main():
    is_rehearsal = sys.argv[1] == "1"
    import jax

    print(f"jax {jax.__version__}, {jax.devices()}", flush=True)
    if check_cases(is_rehearsal):
        time_all(is_rehearsal)
    else:
        print("Numerics failed: no timings.", flush=True)


if __name__ == "__main__":
    main()
