"""The Triton kernels on this GPU against float64, each case in a worker.

Part of `gpu.py`. Every case compiles kernels of its own, so several processes
share the cases; and a kernel that breaks the GPU's context takes down one
worker, not the run. A worker is this file, called with the tasks as arguments;
it prints a line of JSON per task.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

DTYPES = ("bfloat16", "float32", "float16")
# bfloat16 products are wrong in Triton's interpreter.
REHEARSED_DTYPES = ("float32", "float16")
REHEARSED_CASES = ("sliding-left_sinks", "window-exclude_local", "block-large")
MAX_WORKERS, ROUNDS = 8, 3


def large_cases(length=4096, window=256):
    """Cases of many tiles, with the head dims of models."""
    from tests.testing import Case

    def case(name, **changes):
        settings = {
            "batch": 2,
            "length": length,
            "heads": 8,
            "kv_heads": 2,
            "head_dim": 64,
            "value_dim": 64,
            "window": window,
            "is_causal": True,
            "permutation": "shared",
        }
        return Case(name, **{**settings, **changes})

    wide = {"head_dim": 128, "value_dim": 128}
    return (
        case("sliding-large", permutation="identity"),
        case("window-large"),
        case("window-large_128", **wide),
        case("window-large_256", head_dim=256, value_dim=256, heads=4),
        case("window-large_dims", head_dim=96, value_dim=80),
        case(
            "window-large_all_pairs", is_causal=False, length=length - 1, **wide
        ),
        case("window-large_per_head", permutation="per_head", **wide),
        case(
            "window-large_padding",
            permutation="per_example",
            padding="ragged",
            sinks=True,
            attn_logits_soft_cap=5.0,
            length=length + 1,
        ),
        case("window-large_exclude", exclude_local=window, kv_heads=8),
        case("block-large", neighborhood="block"),
        case(
            "block-large_per_head",
            neighborhood="block",
            permutation="per_head",
            padding="left",
            sinks=True,
            length=length - 1,
            **wide,
        ),
    )


def all_cases(is_rehearsal):
    """Cases by name; the kernels have no attention masks."""
    from tests import testing

    cases = [
        case
        for case in testing.CASES
        if case.top_k is None and case.attention_mask == "none"
    ]
    if is_rehearsal:
        cases += large_cases(length=80, window=24)
        return {c.name: c for c in cases if c.name in REHEARSED_CASES}
    return {case.name: case for case in [*cases, *large_cases()]}


def check_case(case, dtype, device):
    """Errors of one case: those of the kernels, those of dense float32, and
    whether they are within the bounds."""
    import torch

    from examples.benchmarks.gpu_oracle import is_within
    from examples.benchmarks.gpu_oracle import relative_error
    from tests import testing

    inputs = testing.make_inputs(case, dtype)
    result = testing.case_runner(case, "triton", dtype)(inputs, dtype)
    actual = {"output": result.output, "lse": result.lse, **result.gradients}
    exact = run_oracle(case, inputs, torch.float64, device)
    dense = run_oracle(case, inputs, torch.float32, device)
    errors, own, passed = {}, {}, True
    for name, values in actual.items():
        values = torch.as_tensor(values, device=device)
        errors[name] = relative_error(values, exact[name])
        # Log-sum-exps are float32 whatever the inputs are.
        own_dtype = "float32" if name == "lse" else dtype
        own[name] = relative_error(
            round_to(dense[name], own_dtype), exact[name]
        )
        is_gradient = name not in ("output", "lse")
        passed &= is_within(errors[name], own[name], own_dtype, is_gradient)
    return {"errors": errors, "dense": own, "passed": passed}


def run_oracle(case, inputs, dtype, device):
    """What the oracle returns, by name."""
    import torch

    from examples.benchmarks.gpu_oracle import case_visibility
    from examples.benchmarks.gpu_oracle import exact_attention

    def tensor(x):
        return None if x is None else torch.as_tensor(x, device=device)

    visible = case_visibility(
        case,
        inputs.permutation,
        inputs.padding_mask,
        device,
        hidden_first=inputs.hidden_first,
    )
    output, lse, gradients = exact_attention(
        *(tensor(x) for x in (inputs.query, inputs.key, inputs.value)),
        visible,
        scale=case.scale,
        attn_logits_soft_cap=case.attn_logits_soft_cap,
        sinks=tensor(inputs.sinks),
        real=tensor(inputs.padding_mask),
        dtype=dtype,
        weights=(tensor(inputs.output_weight), tensor(inputs.lse_weight)),
    )
    return {"output": output, "lse": lse, **gradients}


def round_to(x, dtype):
    import torch

    return x.to(getattr(torch, dtype))


def work(device, is_rehearsal, tasks):
    """What a worker does."""
    import torch

    cases = all_cases(is_rehearsal)
    for task in tasks:
        name, dtype = task.split(":")
        try:
            report = check_case(cases[name], dtype, device)
        except Exception:
            report = {"passed": False, "failure": traceback.format_exc()}
        print(json.dumps({"task": task, **report}), flush=True)
        if device == "cuda" and "failure" in report:
            torch.cuda.synchronize()  # ends the worker if the context is lost


def run_section(report, budget, device, is_rehearsal):
    """Runs all tasks and prints them as they end; returns them by name."""
    dtypes = REHEARSED_DTYPES if is_rehearsal else DTYPES
    tasks = [f"{name}:{d}" for d in dtypes for name in all_cases(is_rehearsal)]
    done = report["tasks"] = {}
    print("| case | dtype | " + " | ".join(_COLUMNS) + " | |")
    print("|---" * (3 + len(_COLUMNS)) + "|", flush=True)
    for _ in range(ROUNDS):
        waiting = [task for task in tasks if task not in done]
        if waiting and budget.left() > 0:
            _run_workers(waiting, done, budget.left(), device, is_rehearsal)
    for task in tasks:
        if task not in done:
            budget.skipped.append(f"numerics of {task}")
    failed = sorted(t for t, result in done.items() if not result["passed"])
    report["failed"] = failed
    print(f"\n{len(done)} of {len(tasks)} checked, {len(failed)} failed:")
    print("\n".join(failed) or "none", flush=True)


_COLUMNS = ("output", "lse", "query", "key", "value", "sinks")


def _run_workers(tasks, done, seconds, device, is_rehearsal):
    count = 1 if is_rehearsal else min(MAX_WORKERS, (os.cpu_count() or 2) // 2)
    shares = [tasks[i::count] for i in range(count) if tasks[i::count]]
    with concurrent.futures.ThreadPoolExecutor(len(shares)) as pool:
        for _ in pool.map(
            lambda share: _run_worker(
                share, done, seconds, device, is_rehearsal
            ),
            shares,
        ):
            pass


def _run_worker(tasks, done, seconds, device, is_rehearsal):
    command = [sys.executable, __file__, device, str(int(is_rehearsal))]
    process = subprocess.Popen(
        [*command, *tasks],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    alarm = threading.Timer(seconds, process.kill)
    alarm.start()
    try:
        for line in process.stdout:
            _take(line, done)
    finally:
        alarm.cancel()
        process.wait()


def _take(line, done):
    if not line.startswith('{"task"'):
        print(line, end="", flush=True)  # a warning, or a last word
        return
    result = json.loads(line)
    done[result.pop("task")] = result
    print(_row(line), flush=True)


def _row(line):
    result = json.loads(line)
    name, dtype = result["task"].split(":")
    if "failure" in result:
        return f"| {name} | {dtype} | FAIL |\n{result['failure']}"
    cells = [
        f"{result['errors'][c]:.1e} ({result['dense'][c]:.0e})"
        if c in result["errors"]
        else ""
        for c in _COLUMNS
    ]
    verdict = "PASS" if result["passed"] else "FAIL"
    return f"| {name} | {dtype} | {' | '.join(cells)} | {verdict} |"


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2] == "1", sys.argv[3:])
