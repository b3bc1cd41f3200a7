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

import argparse
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import namespaces
from benchmarks.harness import ROOT, commands, cpu

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


def pictures() -> Any:
    """Return the data set of these records."""
    from experiments.tasks import data, sources

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
MOMENTS = {
    "start": Moment("experiments.sweep", "check_same", 1),
    "round": Moment("stragglers.inject", "Injector._worked", 20),
    "goal": Moment("stragglers.inject", "Injector._worked", 20, wait="first_finisher"),
    "input": Moment(OWN, "Pictures.__getitem__", 3000, flags=STREAMED),
    "checkpoint": Moment(
        "experiments.train", "Arm.checkpoint", 2,
        ("experiments.checkpoints", "Writing.__init__"),
    ),
    "evaluation": Moment("experiments.train", "Arm.evaluate", 3),
}


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
    owner = importlib.import_module(module)
    *inner, name = function.split(".")
    for part in inner:
        owner = getattr(owner, part)
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
                os.kill(os.getpid(), signal.Signals[fault])
        return usual(*arguments, **keywords)

    setattr(owner, name, disturbed)
    sys.argv = list(argv)
    runpy.run_path(argv[0], run_name="__main__")


def launch(
    trial: Trial, here: pathlib.Path, address: str, on: list[list[str]]
) -> list[subprocess.Popen]:
    """Start the processes of a run, one of them the victim; they print into PROCESS.txt."""
    moment, running = MOMENTS[trial.moment], []
    environment = cpu(WORKERS // trial.processes) | {
        "XDG_CACHE_HOME": str(here.parent), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    flags = [*FLAGS, *moment.flags, f"--config.wait={moment.wait}", f"--workdir={here / 'run'}"]
    if trial.fault == STILL:
        flags.append(f"--stuck_seconds={STUCK:g}")
    for rank, command in enumerate(commands(flags, trial.processes, address)):
        if rank == trial.victim:
            victim = ["victim", trial.moment, trial.fault, str(rank), str(here / "mark")]
            command[1:1] = ["-m", OWN, *victim]
        with (here / f"{rank}.txt").open("w") as said:
            running.append(
                subprocess.Popen(
                    [*on[rank], *command], cwd=ROOT, env=environment, stdout=said, stderr=said
                )
            )
    return running


def ended(running: list[subprocess.Popen], seconds: float) -> dict[int, float]:
    """Return {position: time of its end} of the processes that end within these seconds."""
    until, found = time.time() + seconds, {}
    while len(found) < len(running) and time.time() < until:
        for position, process in enumerate(running):
            if position not in found and process.poll() is not None:
                found[position] = time.time()
        time.sleep(0.02)
    return found


def tried(trial: Trial) -> dict:
    """Try a fault and return its row."""
    row, running = {**trial._asdict()}, []
    with contextlib.ExitStack() as opened:
        here = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory())) / "trial"
        here.mkdir()
        on, address, cut = [[]] * trial.processes, "127.0.0.1", []
        if trial.fault == CUT:
            hosts = opened.enter_context(namespaces.switch(trial.processes))
            on, address = [host.prefix for host in hosts], hosts[0].address
            cut = [host.cut for host in hosts]
        try:
            still = trial.fault == STILL
            running = launch(trial, here, address, on)
            until = time.time() + STARTING
            while not (here / "mark").exists():
                if time.time() > until or any(process.poll() is not None for process in running):
                    row |= {"seconds": None, "wrong": ["the moment has not come"]}
                    row["said"] = [path.read_text()[-1500:] for path in here.glob("*.txt")]
                    return row
                time.sleep(0.02)
            time.sleep(0.05)
            began = float((here / "mark").read_text())
            if cut:
                subprocess.run(cut[trial.victim], check=True)
                began = time.time()
            others = [p for rank, p in enumerate(running) if rank != trial.victim or cut or still]
            left = ended(others, LONGEST)
            row["seconds"] = round(max(left.values()) - began, 1) if left else None
            row["hanging"] = len(others) - len(left)
            row["codes"] = [process.poll() for process in others]
            said = [(here / f"{running.index(p)}.txt").read_text() for p in others]
            wrong = {"not one sentence" for text in said if text.count("\nerror: process ") != 1}
            row["wrong"] = [*wrong, *{"a traceback" for text in said if "Traceback" in text}]
            if still:
                words = rf"warning: process {trial.victim} of .*? has stood still for (\d+) s"
                named = [int(found) for text in said for found in re.findall(words, text)]
                row["named"], row["named after"] = bool(named), min(named, default=None)
            if row["wrong"] or row["hanging"] or set(row["codes"]) != {3}:
                row["said"] = [text[-1500:] for text in said]
            if trial.fault == "SIGSTOP":
                again = time.time()
                running[trial.victim].send_signal(signal.SIGCONT)
                back = ended([running[trial.victim]], LONGEST)
                row["stopped one"] = [
                    round(back[0] - again, 1) if back else None,
                    running[trial.victim].poll(),
                ]
        finally:
            for process in running:
                process.kill()
                process.wait()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", default="SIGKILL,SIGSTOP", help=f"and {CUT}, with commas")
    parser.add_argument("--processes", default="2,4", help="how many a run has; 2 or 4")
    parser.add_argument("--moments", default=",".join(MOMENTS), help="only these, with commas")
    parser.add_argument("--output", type=pathlib.Path, help="a file for the rows, as JSON")
    options = parser.parse_args()
    rows = []
    print(f"{'fault':8} {'processes':>9} {'victim':>6} {'moment':11} {'seconds':>7}  codes, ...")
    counts, moments = map(int, options.processes.split(",")), options.moments.split(",")
    for fault, count, moment in itertools.product(options.faults.split(","), counts, moments):
        for victim in range(count):
            row = tried(Trial(fault, count, victim, moment))
            rows.append(row)
            rest = {k: v for k, v in row.items() if k not in (*Trial._fields, "seconds", "said")}
            print(f"{fault:8} {count:9} {victim:6} {moment:11} {row['seconds']!s:>7}  {rest}",
                  flush=True)  # fmt: skip
            if options.output:
                options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        as_victim(*sys.argv[2:])
    else:
        main()
