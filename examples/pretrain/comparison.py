"""Makes the runs of a comparison, each a process of its own."""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import queue
import shlex
import subprocess
import sys

from examples.pretrain import attention_options
from examples.pretrain import comparison_report
from examples.shared.attentions import ATTENTIONS
from examples.shared.attentions import pattern_at
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from keras_sa.patterns import Pattern

_SHOWN_LINES = 20  # of a run that failed


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of run.py.

    Attributes:
        attention: its name.
        seed: int.
        pattern: what its tokens attend to.
        arguments: of the command line of the comparison.
    """

    attention: str
    seed: int
    pattern: Pattern
    arguments: argparse.Namespace

    @property
    def folder(self):
        return self.arguments.output / self.attention / f"seed_{self.seed}"

    @property
    def words(self):
        """The command line, after the name of the interpreter."""
        arguments = self.arguments
        script = pathlib.Path(__file__).with_name("run.py")
        return [
            os.path.relpath(script),
            *attention_options.as_words(
                self.pattern, ATTENTIONS[self.attention].resample
            ),
            *("--seed", str(self.seed), "--output", str(self.folder)),
            *("--size", arguments.size, "--length", str(arguments.length)),
            *("--backend", arguments.backend),
            *arguments.handed_on,
        ]

    def summary(self):
        """What the finished run wrote, or `None`."""
        path = self.folder / "summary.json"
        if not path.is_file():
            return None
        summary = json.loads(path.read_text())
        _, _, *words = shlex.split(summary["command"])
        is_same = words == self.words[1:]  # the script may have been moved
        return summary if is_same else None


def main(arguments):
    budget, length = arguments.visible_keys, arguments.length
    patterns = {
        name: pattern_at(name, budget, length) for name in arguments.attentions
    }
    runs = [
        Job(name, seed, patterns[name], arguments)
        for seed in arguments.seeds
        for name in arguments.attentions
    ]
    todo = [run for run in runs if run.summary() is None]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} of them finished before")
    make(arguments, todo)

    paths = comparison_report.write(arguments, runs)
    announce_end(paths)


def make(arguments, runs):
    """Runs that are not finished, --jobs of them at a time."""
    shares = queue.SimpleQueue()
    for share in shares_of_cores(arguments.jobs):
        shares.put(share)
    with concurrent.futures.ThreadPoolExecutor(
        arguments.jobs, initializer=lambda: stay_on(shares.get())
    ) as pool:
        waiting = {pool.submit(train, run): run for run in runs}
        done = concurrent.futures.as_completed(waiting)
        for number, future in enumerate(done, start=1):
            run, failure = waiting[future], future.result()
            if failure:
                pool.shutdown(wait=False, cancel_futures=True)
                raise SystemExit(failure)
            tell(number, len(runs), run)


def shares_of_cores(jobs):
    """Sets of cores, which processes that follow one another are given."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [None] * jobs
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[job::jobs]) or set(cores) for job in range(jobs)]


def stay_on(cores):
    """What the calling thread starts runs on these cores."""
    if cores is not None:
        os.sched_setaffinity(0, cores)


def train(run):
    """Runs run.py to the end; returns what went wrong, if it did."""
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "printed.txt"
    with path.open("w") as printed:
        done = subprocess.run(
            [sys.executable, *run.words],
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    if done.returncode == 0 and run.summary() is not None:
        return None
    last_lines = path.read_text().splitlines()[-_SHOWN_LINES:]
    command = shlex.join(["python", *run.words])
    return "\n".join([*last_lines, f"This run failed: {command}"])


def tell(number, total, run):
    summary = run.summary()
    announce(
        number,
        total,
        f"{run.attention}, seed {run.seed}: held-out loss "
        f"{summary['held_out_loss']:.4f}, "
        f"{summary['seconds_of_training']:.0f} s of training",
    )
