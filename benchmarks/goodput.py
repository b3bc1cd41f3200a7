"""Samples per second that are left of a run when one of its processes is killed every few seconds.

    python -m benchmarks.goodput --every=5,30

Four workers of three systems sleep for the same delays. A worker of K-batch-async or of SwarmSGD is
a process of its own, whose place another one takes. The processes of a synchronous mesh all end
with one of them, start again (`--restarts`) and go on from their last checkpoint. Goodput is what
stands in the models at the first evaluation after the same time on the wall, in samples per second,
over that of the same system undisturbed. Rows go into docs/results/benchmarks/goodput.json, where
`every` is 0 for a system that is left alone.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks import points
from benchmarks.processes import children, descendants, free_port, kill

ROOT = pathlib.Path(__file__).parents[1]
RECORD, KEY = points.FOLDER / "goodput.json", ("system", "every")
WORKERS = 4
STARTING = 180.0  # s that a run may take until its first evaluation
LAUNCH = (sys.executable, str(ROOT / "launch.py"), "--config.seconds=100000")
SERVER = f"--config=configs/slow_and_stale_real.py:workers={WORKERS}"
PAIRS = f"--config=configs/swarm_real.py:nodes={WORKERS}"


class System(NamedTuple):
    """What trains, and how its processes look from outside."""

    flags: tuple[str, ...]
    processes: int = 1  # that are launched, each with its own parent that restarts it


SYSTEMS = {
    "K-batch-async": System((SERVER, f"--config.wait=k_batch_async(k={WORKERS})")),
    "SwarmSGD": System((PAIRS, "--config.task=digits(model=logistic, l2=0.01)")),
    "synchronous mesh": System(
        (SERVER, "--config.runtime=mesh", "--config.wait=barrier", "--config.rounds_per_dispatch=1",
         "--restarts=1000", "--checkpoint_seconds=1"),
        processes=WORKERS,
    ),
}  # fmt: skip
SAME = ("--config.delay=exponential(scale=0.2)", "--config.evaluate_every=1")


class Row(NamedTuple):
    """What a system has got through."""

    system: str
    every: float  # s between two kills; 0: none
    kills: int
    seconds: float  # on the wall, until the evaluation that ends it
    samples_per_second: float


@contextlib.contextmanager
def started(system: System, workdir: pathlib.Path) -> Iterator[list[subprocess.Popen]]:
    """The launching processes; all that they have started ends with the block."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "NO_PROXY": "127.0.0.1"}
    command = [*LAUNCH, *system.flags, *SAME, f"--workdir={workdir}"]
    address, running = f"127.0.0.1:{free_port()}", []
    with (workdir.parent / f"{workdir.name}.txt").open("w") as output:
        try:
            for rank in range(system.processes):
                joins = [f"--coordinator_address={address}", f"--process_id={rank}"]
                joins = [*joins, f"--num_processes={system.processes}"]
                running.append(
                    subprocess.Popen(
                        command if system.processes == 1 else [*command, *joins],
                        cwd=ROOT,
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
            yield running
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
            for pid in [left for process in running for left in descendants(process.pid)]:
                kill(pid)
            for process in running:
                process.kill()
                process.wait()


def workers_of(system: System, running: list[subprocess.Popen]) -> list[int]:
    """The processes of workers that are there now."""
    if system.processes > 1:
        return [child for process in running for child in children(process.pid)]
    named = []
    for pid in descendants(running[0].pid):
        with contextlib.suppress(OSError):
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            if line.startswith(b"ray::Member"):
                named.append(pid)
    return named


def samples_of(workdir: pathlib.Path) -> int | None:
    """Samples in the model at the last evaluation, once there was an update."""
    try:
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["samples"] or None
    except (OSError, IndexError, json.JSONDecodeError):
        return None


def measure(name: str, every: float, seconds: float, workdir: pathlib.Path) -> Row:
    """Run a system for these seconds, and kill one of its workers now and then."""
    system, draw, kills = SYSTEMS[name], random.Random(0), 0
    with started(system, workdir) as running:
        patience = time.monotonic() + STARTING
        while samples_of(workdir) is None:
            if time.monotonic() > patience:
                said = (workdir.parent / f"{workdir.name}.txt").read_text()
                raise RuntimeError(f"{name} has not begun within {STARTING:g} s: {said[-500:]}")
            time.sleep(0.1)
        begin, before = time.monotonic(), samples_of(workdir)
        due = begin + (every or seconds)
        while (now := time.monotonic()) < begin + seconds:
            if every and now >= due:
                due += every
                there = workers_of(system, running)
                if there:
                    kills += kill(draw.choice(there))
            time.sleep(0.05)
        # What was gained shows at the next evaluation; a mesh may be on its way back.
        ended = time.time()
        while (workdir / "metrics.jsonl").stat().st_mtime < ended:
            if time.monotonic() > begin + seconds + STARTING:
                raise RuntimeError(f"{name} has not come back within {STARTING:g} s")
            time.sleep(0.05)
        after, took = samples_of(workdir) or before, time.monotonic() - begin
    return Row(name, every, kills, took, (after - before) / took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="from an evaluation on")
    parser.add_argument("--every", default="5,30", help="seconds between two kills, with commas")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="only these, with commas")
    parser.add_argument("--output", type=pathlib.Path, default=RECORD, help="another record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.systems.split(","):
            alone = None
            for every in (0.0, *map(float, options.every.split(","))):
                workdir = pathlib.Path(folder) / f"{name}, {every}"
                row = measure(name, every, options.seconds, workdir)
                alone = alone or row
                share = row.samples_per_second / max(alone.samples_per_second, 1e-9)
                point = row._asdict() | {"share": share}
                points.put(options.output, "python -m benchmarks.goodput", KEY, [point])
                how = f"a kill every {every:g} s ({row.kills})" if every else "undisturbed"
                print(f"{name}, {how}: {row.samples_per_second:.0f} samples/s, {share:.2f}",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
