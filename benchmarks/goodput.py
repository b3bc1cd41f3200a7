"""Samples per second that are left of a run when one of its processes is killed every few seconds.

    python -m benchmarks.goodput --every=5,30

Four workers of three systems sleep for the same delays. A worker of K-batch-async or of SwarmSGD is
a process of its own, whose place another one takes. The processes of a synchronous mesh all end
with one of them, start again (`--restarts`) and go on from their last checkpoint. Goodput is what
stands in the models at the first evaluation after the same time on the wall, in samples per second,
over that of the same system undisturbed.
"""

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

from absl import app, flags

from benchmarks.processes import children, descendants, free_port, kill

_SECONDS = flags.DEFINE_float(
    "seconds", 60.0, "On the wall, from the first evaluation after an update on."
)
_EVERY = flags.DEFINE_list("every", ["5", "30"], "Seconds between two kills, for each a row.")
_SYSTEMS = flags.DEFINE_list("systems", [], "Only these.")
_OUTPUT = flags.DEFINE_string("output", None, "A file for the rows, as JSON.")

ROOT = pathlib.Path(__file__).parents[1]
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
    every: float | None  # s between two kills
    kills: int
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


def measure(name: str, every: float | None, seconds: float, workdir: pathlib.Path) -> Row:
    """Run a system for these seconds, and kill one of its workers every `every` of them."""
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
            if every is not None and now >= due:
                due += every
                there = workers_of(system, running)
                if there:
                    kills += kill(draw.choice(there))
            time.sleep(0.05)
        # Gossip evaluates when all nodes are there: what was gained shows at the next evaluation.
        ended = time.time()
        while (workdir / "metrics.jsonl").stat().st_mtime < ended:
            if time.monotonic() > begin + seconds + STARTING:
                raise RuntimeError(f"{name} has not come back within {STARTING:g} s")
            time.sleep(0.05)
        after, took = samples_of(workdir) or before, time.monotonic() - begin
    return Row(name, every, kills, (after - before) / took)


def main(_) -> None:
    rows, seconds = [], _SECONDS.value
    with tempfile.TemporaryDirectory() as folder:
        for name in _SYSTEMS.value or SYSTEMS:
            for every in (None, *map(float, _EVERY.value)):
                workdir = pathlib.Path(folder) / f"{len(rows)}"
                rows.append(measure(name, every, seconds, workdir))
                row, alone = rows[-1], next(r for r in rows if r.system == name)
                how = "undisturbed" if every is None else f"a kill every {every:g} s ({row.kills})"
                share = row.samples_per_second / max(alone.samples_per_second, 1e-9)
                print(f"{name}, {how}: {row.samples_per_second:.0f} samples/s, {share:.2f}",
                      flush=True)  # fmt: skip
    if _OUTPUT.value:
        text = json.dumps([row._asdict() for row in rows], indent=1)
        pathlib.Path(_OUTPUT.value).write_text(text + "\n")


if __name__ == "__main__":
    app.run(main)
