"""Peak memory of one attention, in a process of its own.

`grown_megabytes` starts this file as that process. It reads the high-water
mark of its resident memory, so it sees whatever an allocator took.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

STATUS = pathlib.Path("/proc/self/status")


def grown_megabytes(attention, problem, options=()):
    """MB by which each pass raises the peak, by pass; `None` if unknown.

    Args:
        attention: `Attention`.
        problem: `Problem`.
        options: options of the benchmark that decide what the table holds.
    """
    if not STATUS.exists():
        return None
    shape = json.dumps(dataclasses.asdict(problem))
    command = [sys.executable, __file__, attention.name, shape, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip()[-500:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def peak_megabytes():
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{STATUS} has no VmHWM")


def grow(attention, problem, compile):
    from examples.benchmarks.attention_measuring import Candidate

    # Once for a short text: compilers and thread pools take memory as well.
    short = dataclasses.replace(
        problem, length=min(problem.length, 2 * problem.window)
    )
    for size in (short, problem):
        candidate = Candidate(attention, size, compile)
        baseline = highest = peak_megabytes()
        grown = {}
        for of_pass in candidate.passes:
            candidate.run(of_pass)
            # Linux counts pages roughly: a later reading can be the lower one.
            highest = max(highest, peak_megabytes())
            grown[of_pass] = highest - baseline
    return grown


def main():
    from examples.benchmarks import attention

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("problem")
    arguments, options = parser.parse_known_args()
    settings = attention.parse_arguments(options)
    attention.choose_backend(settings)
    from examples.benchmarks.attention_table import Problem

    problem = Problem(**json.loads(arguments.problem))
    (chosen,) = (
        entry
        for entry in attention.choose_attentions(settings)
        if entry.name == arguments.name
    )
    print(json.dumps(grow(chosen, problem, attention.choose_compile(settings))))


if __name__ == "__main__":
    main()
