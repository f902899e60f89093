"""Times the attentions of every shape, each after it was checked.

Part of `gpu.py`. An attention that is wrong at a shape, or whose gradients
were wrong at the shape where they are checked, gets no figure there.

Letters: `n` tokens, `H` query heads, `K` key/value heads, `D` head dim.
"""

import dataclasses
import traceback

import torch

from examples.benchmarks import gpu_attentions as attentions
from examples.benchmarks.gpu_attentions import Shape
from examples.benchmarks.gpu_timing import rotation
from examples.benchmarks.gpu_work import print_table

PASSES = ("forward", "forward + backward")
# What has lengths of its own: compiling takes long, or little is to be learnt.
ONLY_AT = {
    attentions.FLEX: (2048, 8192, 32768),
    "stochastic window, public op": (2048, 32768),
}
LONGEST_FULL_BACKWARD, SECONDS_FOR_LONGER = 65536, 120
LONGEST_CHECKED_WHOLE = 2048
REHEARSED_LENGTHS, REHEARSED_WHOLE = (48, 80), 48


def shapes(is_rehearsal):
    """The shapes, the most telling ones first. The shortest of each kind of
    heads comes before the others: there the gradients are checked."""
    if is_rehearsal:
        return [
            Shape(length, 16, heads=2, kv_heads=1, window=24)
            for length in REHEARSED_LENGTHS
        ]
    found = [Shape(n, d) for d in (64, 128) for n in (2048, 32768, 8192)]
    grouped = {"heads": 32, "kv_heads": 8}
    found += [Shape(n, 128, **grouped) for n in (2048, 32768)]
    for length in (131072, 16384, 65536, 4096):
        found += [Shape(length, d) for d in (64, 128)]
    return found


def run_section(report, budget, stopwatch, device, is_rehearsal):
    """Fills `report` with the results of each shape."""
    report["shapes"] = results = {}
    dtype = torch.float16 if is_rehearsal else torch.bfloat16
    trusted = {}  # by name and heads: whether the gradients were right
    for shape in shapes(is_rehearsal):
        if not budget.has(f"timings at {shape}"):
            continue
        result = {"shape": dataclasses.asdict(shape), "attentions": {}}
        results[str(shape)] = result
        all_ = attentions.Attentions(shape, device, dtype, is_rehearsal)
        for name in attentions.NAMES:
            lengths = ONLY_AT.get(name, (shape.length,))
            if shape.length not in lengths and not is_rehearsal:
                continue
            if budget.has(f"{name} at {shape}"):
                result["attentions"][name] = time_one(
                    all_, name, trusted, budget, stopwatch
                )
        print_shape(shape, result["attentions"])
        if stopwatch.is_cuda:
            torch.cuda.empty_cache()


def time_one(all_, name, trusted, budget, stopwatch):
    """Checks and times one attention; returns its figures by pass."""
    shape = all_.shape
    kind = (name, shape.head_dim, shape.heads, shape.kv_heads)
    figures = {}
    try:
        attention = all_.make(name)
        inputs = shape.make_inputs(
            0, all_.device, all_.dtype, attention.has_backward
        )
        is_whole = shape.length <= (
            REHEARSED_WHOLE if all_.is_rehearsal else LONGEST_CHECKED_WHOLE
        )
        errors = attentions.check(attention, inputs, is_whole)
        figures["errors"] = errors
        is_right = attentions.is_right(errors, str(all_.dtype)[6:])
        if is_whole:
            trusted[kind] = is_right
        figures["right"] = is_right and trusted.get(kind, False)
        if not figures["right"]:
            print(f"{name} at {shape}: WRONG, no figure; {errors}", flush=True)
            return figures
        for of_pass in PASSES[: 1 + attention.has_backward]:
            if may_time(name, shape, of_pass, budget):
                measured = measure(attention, all_, of_pass, stopwatch)
                figures[of_pass] = {
                    **dataclasses.asdict(measured),
                    "eager": measured.eager,
                }
    except Exception as error:
        figures["failure"] = traceback.format_exc()
        print(f"{name} at {shape}: {_first_line(error)}", flush=True)
    return figures


def _first_line(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def may_time(name, shape, of_pass, budget):
    is_long = (
        name in (attentions.FLASH, attentions.CUDNN)
        and of_pass != "forward"
        and shape.length > LONGEST_FULL_BACKWARD
    )
    seconds = SECONDS_FOR_LONGER if is_long else 0
    return budget.has(f"{name}, {of_pass}, at {shape}", seconds)


def measure(attention, all_, of_pass, stopwatch):
    shape, device, dtype = all_.shape, all_.device, all_.dtype
    is_forward = of_pass == "forward"
    with_grad = attention.is_compiled_once or not is_forward

    def make(seed):
        inputs = shape.make_inputs(seed, device, dtype, with_grad)
        return inputs if is_forward else (*inputs, torch.randn_like(inputs[0]))

    function = attention.function
    if not is_forward:
        function = attentions.with_gradients(function)
    with torch.set_grad_enabled(with_grad):
        return stopwatch.measure(function, rotation(make, device))


def print_shape(shape, figures):
    """Milliseconds and how often full attention takes as long."""
    print(f"{shape}, w={shape.window}: device ms (host ms), x: full / it\n")
    rows = []
    for name, found in figures.items():
        cells = []
        for of_pass in PASSES:
            timed = found.get(of_pass)
            full = fastest_full(figures, of_pass)
            cells.append(_cell(timed))
            cells.append(
                f"{full / timed['device']:.1f}" if timed and full else ""
            )
        rows.append((name, *cells))
    head = ("attention", "forward", "x", "forward + backward", "x")
    print_table(head, rows)


def _cell(timed):
    if not timed:
        return "-"
    few = "" if timed["repeats"] >= 20 else f", {timed['repeats']} calls"
    return f"{timed['device']:.4g} ({timed['host']:.2g}{few})"


def fastest_full(figures, of_pass, clock="device"):
    """Milliseconds of the faster of torch's full causal attentions."""
    found = [
        figures[name][of_pass][clock]
        for name in (attentions.FLASH, attentions.CUDNN)
        if of_pass in figures.get(name, {})
    ]
    return min(found, default=None)
