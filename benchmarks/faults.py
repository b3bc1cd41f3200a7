"""Counts of runs that recover from a kill, a request to end, or a full disk.

    python -m benchmarks.faults --kills=100 --terms=40 --disks=20 --seed=1
    python -m benchmarks.faults --ways=simulator --kills=3 --terms=0 --disks=0

Tiny runs are launched in several ways: three of the simulator, a sweep with --together, one with
--jobs=2, a mesh of four devices, the same on two processes. Faults come at random moments.

    kills   SIGKILL to one process: the others of a run under way say so and leave with exit code 3
    terms   SIGTERM to one process: all processes of the run leave with exit code 143
    disks   a disk of some kilobytes, as root: a sentence says so, and the exit code is 1 or 2

After each fault the same command ends as if nothing had happened: bit for bit in virtual time,
with the same parameters and counters on a mesh, and with no file left over. A traceback counts as a
deviation.
"""

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks.harness import ROOT, commands, cpu, descendants
from benchmarks.same_behaviour import WALL, compare, fields

LIMIT = 900.0  # s that a launch may take
SIZES = (0, 16, 24, 32, 48, 64, 96, 128, 200, 300)  # kB of a small disk
CONFIG = """
from configs import nonblocking


def get_config():
    config = nonblocking.get_config()
    config.task = "synthetic_logistic(samples=512, dimension=16)"
    config.workers, config.batch_size, config.mini_batches = 4, 8, 2
    config.seconds, config.evaluate_every, config.updates = 4.0, 0.5, 100000
    config.name, config.baseline, config.target_loss = "all_reduce/0", None, None
    return config


def sweep():
    for number in range(3):
        yield f"all_reduce/{number}", {"seed": number, "seconds": 4.0 - number % 2}
"""
MESH = (
    "--config.runtime=mesh", "--config.wait=barrier", "--config.communication=0",
    "--config.delay=deterministic(value=0.005)", "--config.updates=24", "--config.seconds=100000",
    "--config.evaluate_every=0.05",
)  # fmt: skip
COUNTERS = ("summary.json/updates", "summary.json/samples", "summary.json/train_loss")


class Way(NamedTuple):
    """A form of launching a run."""

    flags: tuple[str, ...] = ()
    processes: int = 1
    virtual: bool = True  # whether its clock is virtual


WAYS = {
    "simulator": Way(),
    "asynchronous": Way(("--config.wait=k_async(k=2)", "--config.algorithm=dc_asgd",
                         "--config.mini_batches=1")),
    "gossip": Way(("--config.wait=first_finisher", "--config.algorithm=dpsgd")),
    "together": Way(("--sweep", "--together")),
    "jobs": Way(("--sweep", "--jobs=2")),
    "mesh": Way(MESH, virtual=False),
    "two": Way(MESH, processes=2, virtual=False),
}  # fmt: skip


class Trials:
    """Faults of one way of launching, below a directory."""

    def __init__(self, root: pathlib.Path, name: str, draw: random.Random):
        self.root, self.name, self.way, self.draw, self.made = root, name, WAYS[name], draw, 0
        self.config, self.log = root / f"{name}.py", root / f"{name}.log"
        self.config.write_text(CONFIG)
        self.finish(self.fresh())  # compiles
        self.whole = self.fresh()
        began = time.monotonic()
        self.finish(self.whole)
        self.seconds = time.monotonic() - began

    def fresh(self) -> pathlib.Path:
        """Return a workdir that is not there yet."""
        self.made += 1
        return self.root / f"{self.name}_{self.made}"

    def start(self, place: pathlib.Path) -> list[subprocess.Popen]:
        """Start all processes of a launch; what they print is in `self.log`."""
        self.log.unlink(missing_ok=True)
        flags = [f"--config={self.config}", f"--workdir={place}", "--checkpoint_seconds=0"]
        own = cpu(4 // self.way.processes) | {
            "JAX_COMPILATION_CACHE_DIR": str(self.root / "programs")
        }  # fmt: skip
        running = []
        for command in commands([*flags, *self.way.flags], self.way.processes):
            with self.log.open("a") as log:
                running.append(
                    subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=own)
                )
        return running

    def codes(self, running: list[subprocess.Popen]) -> list[int]:
        """Return all exit codes; a process that takes longer than LIMIT is killed."""
        until = time.monotonic() + LIMIT
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            process.kill()
        return [process.wait() for process in running]

    def finish(self, place: pathlib.Path) -> None:
        """Launch until the run is complete; children of a killed launch may still be at work."""
        while any(self.codes(self.start(place))):
            if "in use by" not in self.log.read_text():
                raise SystemExit(f"no end of {self.name}:\n{self.log.read_text()[-3000:]}")
            time.sleep(1)

    def differences(self, place: pathlib.Path) -> list[str]:
        """Return a finished run's differences from the undisturbed one, and leftover files."""
        over = [str(path) for path in place.rglob("*") if path.name.endswith((".tmp", ".lock"))]
        return [*(f"{path} is left" for path in over),
                *compare(self.kept(self.whole), self.kept(place))]  # fmt: skip

    def kept(self, place: pathlib.Path) -> dict:
        """Return the fields of a run that must be equal: all but wall times, fewer on a mesh."""
        return {
            name: value for name, value in fields(place, WALL, {}).items()
            if "checkpoint/" not in name
            and (self.way.virtual or "parameters.npz/" in name or name.endswith(COUNTERS))
        }  # fmt: skip

    def signalled(self, number: int, place: pathlib.Path) -> bool | None:
        """Launch, send a signal to one process, and judge exit codes and messages.

        Return None if the victim had ended before.
        """
        while True:
            running, moment = self.start(place), self.draw.uniform(0, self.seconds)
            victim = running.pop(self.draw.randrange(len(running)))
            if number == signal.SIGTERM:  # the handler is there once the run trains
                while victim.poll() is None and not list(place.rglob("metrics.jsonl")):
                    time.sleep(0.01)
                moment /= 2
            with contextlib.suppress(subprocess.TimeoutExpired):
                victim.wait(moment)
            young = descendants(victim.pid)
            victim.send_signal(number)
            if number == signal.SIGKILL and self.draw.random() < 0.5:
                for pid in young:  # of --jobs, which would finish their arms
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            code, *others = self.codes([victim, *running])
            said = self.log.read_text(errors="replace")
            if "in use by" not in said:
                break
            time.sleep(1)  # children of the last one finish their arms
        if code == 0 and not any(others):
            return None
        if number == signal.SIGKILL:
            # The first process may still write the report of a run that has ended.
            ended = {0} if (place / "summary.json").exists() else set()
            good = code == -signal.SIGKILL and set(others) <= {3} | ended
        else:
            good = {code, *others} == {128 + signal.SIGTERM} and "ended by SIGTERM" in said
        return good and "Traceback" not in said

    def count(self, tries: int, disturb: Callable[[pathlib.Path], bool | None]) -> Counter:
        """Disturb launches, finish and compare each; return how many were "good" and "bad"."""
        counts: Counter = Counter()
        while counts.total() < tries:
            place = self.fresh()
            good = disturb(place)
            if good is None:  # it had ended before
                continue
            self.finish(place)
            found = self.differences(place)
            counts["good" if good and not found else "bad"] += 1
            if found or not good:
                why = f"DIFFERS: {found[:5]}" if found else "a deviation"
                print(f"{self.name}: {why}: {self.log.read_text()[-1000:]}", flush=True)
            shutil.rmtree(place)
        return counts

    def full(self, place: pathlib.Path) -> bool | None:
        """Launch on a small disk, and copy its files to a large one; return None if it had room."""
        disk = self.root / f"{self.name}_disk"
        disk.mkdir(exist_ok=True)
        size = f"size={self.draw.choice(SIZES) * 1024 + 4096}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], check=True)
        try:
            codes, said = self.codes(self.start(disk / "out")), self.log.read_text()
            if (disk / "out").exists():
                shutil.copytree(disk / "out", place)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        if not any(codes):
            return None  # it had room
        return codes[0] in (1, 2) and "No space left" in said and "Traceback" not in said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--terms", type=int, default=40)
    parser.add_argument("--disks", type=int, default=20, help="as root; of runs of one process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas")
    options = parser.parse_args()
    names, bad = options.ways.split(","), 0
    on_disk = [name for name in names if WAYS[name].processes == 1 and WAYS[name].virtual]
    on_disk = on_disk if os.geteuid() == 0 and shutil.which("mount") else []
    print(f"{'fault':9} {'way':12} {'tries':>5} {'as the rule says':>16} {'deviate':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            trials = Trials(pathlib.Path(folder), name, random.Random(f"{options.seed} {name}"))
            for fault, tries, among, disturb in (
                ("SIGKILL", options.kills, names, partial(trials.signalled, signal.SIGKILL)),
                ("SIGTERM", options.terms, names, partial(trials.signalled, signal.SIGTERM)),
                ("full disk", options.disks, on_disk, trials.full),
            ):
                share = -(-tries // len(among)) if name in among else 0
                counts = trials.count(share, disturb)
                bad += counts["bad"]
                print(f"{fault:9} {name:12} {share:5} {counts['good']:16} {counts['bad']:7}",
                      flush=True)  # fmt: skip
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
