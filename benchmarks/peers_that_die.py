"""Seconds until all processes of a run end after one has died, stopped or lost its link.

    python -m benchmarks.peers_that_die --faults=SIGKILL,SIGSTOP --processes=2,4

Every trial starts a run on several processes of this machine. One of them, the victim, causes its
own fault at the given moment of the run. A row has the seconds until the last of the others has
ended, their exit codes, and what is wrong with their messages, if anything. A stopped victim is
continued once the others have ended, and has to end as well. With `--faults=stands_still` the
victim lives but makes no progress: all have to end, after a line that names it.
`--faults=unplugged` takes root: every process lives in a network namespace of its own, and the link
of the victim is taken down.
"""

import contextlib
import functools
import importlib
import itertools
import json
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import numpy as np

from benchmarks import harness, namespaces
from experiments.tasks import data, sources

WORKERS, UPDATES = 4, 120
FLAGS = (
    "--config=configs/nonblocking.py", "--config.runtime=mesh",
    f"--config.workers={WORKERS}", "--config.algorithm=all_reduce", "--config.mini_batches=2",
    "--config.task=synthetic_logistic(samples=256, dimension=8)", "--config.communication=0",
    "--config.delay=deterministic(value=0.01)", f"--config.updates={UPDATES}",
    "--config.seconds=1000", "--config.evaluate_every=0.2", "--config.rounds_per_dispatch=4",
    "--checkpoint_seconds=0",
)  # fmt: skip
CUT = "unplugged"  # the fault of a link
STILL = "stands_still"  # that of a process which lives and does not go on
STUCK = 8.0  # s without progress after which a run ends
LONGEST = 150.0  # s after which a process counts as hanging
STARTING = 300.0  # s in which a run has to come to the moment


class Pictures:
    """Records of an image and its label, for a run that streams them."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict:
        image = np.random.default_rng(index).integers(0, 128, (8, 8, 1), dtype=np.uint8)
        image[2:6, 4 * (index % 2) : 4 * (index % 2) + 4] += 100
        return {"image": image, "label": index % 2}


def pictures() -> data.Dataset:
    """Return the data set of these records."""
    records = sources.Records("pictures", Pictures(), data.decoded)
    return data.Dataset(records, records, classes=2)


class Moment(NamedTuple):
    """Moment of the fault in a run: before a call of a function."""

    module: str
    function: str
    call: int  # number of this call
    writer: tuple[str, str] | None = None  # in process 0, which writes, if other
    wait: str = "barrier"
    flags: tuple[str, ...] = ()


OWN = "benchmarks.peers_that_die"
STREAMED = (f"--config.task=images(source={OWN}:pictures, model=mlp, reading=stream)",
            "--config.batch_size=4")  # fmt: skip
WORKED = ("stragglers.inject", "Injector._worked", 20)
MOMENTS = {
    "start": Moment("experiments.sweep", "check_same", 1),
    "round": Moment(*WORKED),
    "goal": Moment(*WORKED, wait="first_finisher"),
    "input": Moment(OWN, "Pictures.__getitem__", 3000, flags=STREAMED),
    "checkpoint": Moment(
        "experiments.train", "Arm.checkpoint", 2,
        ("experiments.checkpoints", "write"),
    ),
    "evaluation": Moment("experiments.train", "Arm._look", 3),
}  # fmt: skip


class Trial(NamedTuple):
    """A fault of one process."""

    fault: str
    processes: int
    victim: int
    moment: str


def as_victim(moment: str, fault: str, rank: str, mark: str, *argv: str) -> None:
    """Run the process that has the fault; the file `mark` is written right before it."""
    where = MOMENTS[moment]
    module, function = where.module, where.function
    if where.writer is not None and rank == "0":
        module, function = where.writer
    *inner, name = function.split(".")
    owner = functools.reduce(getattr, inner, importlib.import_module(module))
    usual, calls = getattr(owner, name), 0

    def disturbed(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == where.call:
            pathlib.Path(mark).write_text(repr(time.time()))
            if fault == CUT:
                time.sleep(1.0)  # in which it is taken down
            elif fault == STILL:
                time.sleep(10 * LONGEST)
            else:
                signal.raise_signal(signal.Signals[fault])
        return usual(*arguments, **keywords)

    setattr(owner, name, disturbed)
    sys.argv = list(argv)
    runpy.run_path(argv[0], run_name="__main__")


def launch(
    trial: Trial, here: pathlib.Path, hosts: list[namespaces.Host]
) -> list[subprocess.Popen]:
    """Start the processes of a run, one of them the victim; they print into PROCESS.txt."""
    moment, running = MOMENTS[trial.moment], []
    environment = harness.cpu(WORKERS // trial.processes) | {
        "XDG_CACHE_HOME": str(here.parent), "PYTHONPATH": str(harness.ROOT),
    }  # fmt: skip
    flags = [*FLAGS, *moment.flags, f"--config.wait={moment.wait}", f"--workdir={here / 'run'}"]
    if trial.fault == STILL:
        flags.append(f"--stuck_seconds={STUCK:g}")
    address = hosts[0].address if hosts else "127.0.0.1"
    for rank, command in enumerate(harness.commands(flags, trial.processes, address)):
        if rank == trial.victim:
            victim = ["victim", trial.moment, trial.fault, str(rank), str(here / "mark")]
            command[1:1] = ["-m", OWN, *victim]
        prefix = hosts[rank].prefix if hosts else []
        running.append(harness.begun([*prefix, *command], here / f"{rank}.txt", environment))
    return running


def tried(trial: Trial, here: pathlib.Path, hosts: list[namespaces.Host]) -> dict:
    """Try a fault and return its row; here: an empty directory; hosts: [] for none."""
    row, is_still = {**trial._asdict()}, trial.fault == STILL
    running = launch(trial, here, hosts)
    try:
        until = time.time() + STARTING
        while not (here / "mark").exists():
            if time.time() > until or any(process.poll() is not None for process in running):
                said = [path.read_text()[-1500:] for path in here.glob("*.txt")]
                return row | {"seconds": None, "wrong": ["the moment has not come"], "said": said}
            time.sleep(0.02)
        time.sleep(0.05)
        began, victim = float((here / "mark").read_text()), running[trial.victim]
        if hosts:
            subprocess.run(hosts[trial.victim].cut, check=True)
            began = time.time()
        others = [(rank, process) for rank, process in enumerate(running)
                  if process is not victim or hosts or is_still]  # fmt: skip
        codes = harness.codes([process for _, process in others], LONGEST)
        row["seconds"] = None if None in codes else round(time.time() - began, 1)
        row["hanging"], row["codes"] = codes.count(None), codes
        said = [(here / f"{rank}.txt").read_text() for rank, _ in others]
        wrong = {"not one sentence" for text in said if text.count("\nerror: process ") != 1}
        row["wrong"] = [*wrong, *{"a traceback" for text in said if "Traceback" in text}]
        if is_still:
            words = rf"warning: process {trial.victim} of .*? has stood still for (\d+) s"
            named = [int(found) for text in said for found in re.findall(words, text)]
            row["named"], row["named after"] = bool(named), min(named, default=None)
        if row["wrong"] or set(codes) != {3}:
            row["said"] = [text[-1500:] for text in said]
        if trial.fault == "SIGSTOP":
            again = time.time()
            victim.send_signal(signal.SIGCONT)
            (code,) = harness.codes([victim], LONGEST)
            row["stopped one"] = [None if code is None else round(time.time() - again, 1), code]
        return row
    finally:
        harness.codes(running, 0.0)


def main() -> None:
    options = harness.options(
        __doc__, faults=(["SIGKILL", "SIGSTOP"], f"and {CUT}, {STILL}"),
        processes=([2, 4], "how many a run has; 2 or 4"), moments=([*MOMENTS], "only these"),
        output=("", "a file for the rows, as JSON"),
    )  # fmt: skip
    rows = []
    print(f"{'fault':8} {'processes':>9} {'victim':>6} {'moment':11} {'seconds':>7}  codes, ...")
    for fault, count, moment in itertools.product(
        options.faults, options.processes, options.moments
    ):
        for victim in range(count):
            with contextlib.ExitStack() as opened:
                here = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory()), "trial")
                here.mkdir()
                switch = namespaces.switch(count) if fault == CUT else contextlib.nullcontext([])
                trial = Trial(fault, count, victim, moment)
                row = tried(trial, here, opened.enter_context(switch))
            rows.append(row)
            rest = {k: v for k, v in row.items() if k not in (*Trial._fields, "seconds", "said")}
            harness.say(
                f"{fault:8} {count:9} {victim:6} {moment:11} {row['seconds']!s:>7}  {rest}"
            )
            if options.output:
                pathlib.Path(options.output).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        as_victim(*sys.argv[2:])
    else:
        main()
