"""Trains one decoder from scratch through each attention, and compares.

    python examples/pretrain_comparison.py
    python examples/pretrain_comparison.py --jobs 2 --seeds 0 1 2 --steps 800
    python examples/pretrain_comparison.py --size paper-360m \\
        --visible-keys 256 --dataset HuggingFaceFW/fineweb-edu \\
        --dataset-config sample-100BT --data-parallel

Every run is one of pretrain.py, to which options that are not known here are
handed on. For one seed all start from the same weights and read the same
batches; all but full attention show a token the same number of keys.

A run that is finished is not made again, one that was stopped goes on: start
the same command again. The attentions are in attentions.py, the tables and
the plot in pretrain_comparison_report.py.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import queue
import shlex
import subprocess
import sys

import command_line
import pretrain_attention
from attentions import ATTENTIONS
from attentions import options_at
from pretrain_sizes import SIZES

DEFAULT = (
    "full",
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world",
    "small_world_block",
    "block_routed",
    "gated_window",
    "half_window",
    "two_windows",
    "small_world_per_head",
)
_OWN = ("--attention", "--seed", "--output", "--dry-run")  # of pretrain.py
_SHOWN_LINES = 20  # of a run that failed


def parse_arguments():
    parser = command_line.make_backend_parser(__doc__)
    parser.allow_abbrev = False
    add = parser.add_argument
    add(
        "--attentions",
        nargs="+",
        default=DEFAULT,
        choices=ATTENTIONS,
        help="by the names of attentions.py; default: " + " ".join(DEFAULT),
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add(
        "--visible-keys",
        type=int,
        default=32,
        help="per token, in the mean; all but full attention",
    )
    add("--size", default="tiny", choices=SIZES)
    add("--length", type=int, help="tokens of a sequence; default: by --size")
    add(
        "--jobs",
        type=int,
        default=1,
        help="runs at a time, each on its share of the CPU's cores",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results/pretrain_comparison"),
    )
    arguments, arguments.handed_on = command_line.parse_known(parser)
    if arguments.length is None:
        arguments.length = SIZES[arguments.size].training["length"]
    check(parser, arguments)
    return arguments


def check(parser, arguments):
    for option in _OWN:
        if option in arguments.handed_on:
            parser.error(
                f"{option} is expected not to be given: it differs from run to "
                f"run. Received: {shlex.join(arguments.handed_on)}"
            )
    for name in ("jobs", "visible_keys"):
        if getattr(arguments, name) < 1:
            option = name.replace("_", "-")
            parser.error(
                f"--{option} is expected to be at least 1. "
                f"Received: --{option} {getattr(arguments, name)}"
            )


arguments = parse_arguments()

# ruff: noqa: E402
import pretrain_comparison_report
from command_line import announce
from command_line import elapsed


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of pretrain.py.

    Attributes:
        attention: its name.
        seed: int.
        options: of `hub.swap_attention`.
    """

    attention: str
    seed: int
    options: dict

    @property
    def folder(self):
        return arguments.output / self.attention / f"seed_{self.seed}"

    @property
    def words(self):
        """The command line, after the name of the interpreter."""
        script = pathlib.Path(__file__).with_name("pretrain.py")
        return [
            os.path.relpath(script),
            *pretrain_attention.as_words(self.options),
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
        is_same = shlex.split(summary["command"])[1:] == self.words
        return summary if is_same else None


def main():
    budget, length = arguments.visible_keys, arguments.length
    options = {
        name: options_at(name, budget, length) for name in arguments.attentions
    }
    runs = [
        Run(name, seed, options[name])
        for seed in arguments.seeds
        for name in arguments.attentions
    ]
    todo = [run for run in runs if run.summary() is None]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} of them finished before")
    make(todo)

    paths = pretrain_comparison_report.write(arguments, runs)
    print(f"Done in {elapsed()} minutes. Written:")
    for path in paths:
        print(f"  {path}")


def make(runs):
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
    """Runs pretrain.py to the end; returns what went wrong, if it did."""
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


if __name__ == "__main__":
    main()
