"""Counts of runs that recover from a kill, a request to end, or a full disk.

    python -m benchmarks.faults --kills=100 --terms=40 --disks=20 --seed=1
    python -m benchmarks.faults --ways=simulator --kills=3 --terms=0 --disks=0

Tiny runs are launched in several ways: three of the simulator, a sweep with --together, one with
--jobs=2, a mesh of four devices, the same on two processes. Faults come at random moments.

    kills   SIGKILL to one process: the others of a run under way say so and leave with exit code 3,
            and with 2 if they had not met
    terms   SIGTERM to one process: all processes of the run leave with exit code 143
    disks   a disk of some kilobytes, as root: a sentence says so, and the exit code is 1 or 2

After each fault the same command ends as if nothing had happened: bit for bit in virtual time,
with the same parameters and counters on a mesh, and with no file left over. A traceback counts as a
deviation.
"""

import contextlib
import itertools
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

from benchmarks import harness
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
        self.root, self.name, self.way, self.draw = root, name, WAYS[name], draw
        self.fresh = map(root.joinpath, map(f"{name}_{{}}".format, itertools.count()))  # workdirs
        self.config, self.log = root / f"{name}.py", root / f"{name}.log"
        self.config.write_text(CONFIG)
        self.finish(next(self.fresh))  # compiles
        self.whole = next(self.fresh)
        began = time.monotonic()
        self.finish(self.whole)
        self.seconds = time.monotonic() - began

    def start(self, place: pathlib.Path) -> list[subprocess.Popen]:
        """Start all processes of a launch; what they print is in `self.log`."""
        self.log.unlink(missing_ok=True)
        flags = [f"--config={self.config}", f"--workdir={place}", "--checkpoint_seconds=0"]
        own = harness.cpu(4 // self.way.processes)
        own["JAX_COMPILATION_CACHE_DIR"] = str(self.root / "programs")
        commands = harness.commands([*flags, *self.way.flags], self.way.processes)
        return [harness.begun(command, self.log, own) for command in commands]

    def finish(self, place: pathlib.Path) -> None:
        """Launch until the run is complete; children of a killed launch may still be at work."""
        while set(harness.codes(self.start(place), LIMIT)) != {0}:
            if "in use by" not in self.log.read_text():
                raise SystemExit(f"no end of {self.name}:\n{self.log.read_text()[-3000:]}")
            time.sleep(1)

    def kept(self, place: pathlib.Path) -> dict:
        """Return the fields of a run that must be equal: all but wall times, fewer on a mesh."""
        return {
            name: value for name, value in fields(place, WALL, {}).items()
            if "checkpoint/" not in name
            and (self.way.virtual or "parameters.npz/" in name or name.endswith(COUNTERS))
        }  # fmt: skip

    def signalled(self, number: int, place: pathlib.Path) -> bool | None:
        """Launch, send a signal to one process, and judge exit codes and messages.

        Return None if all of them left with 0: the run had ended before, or was about to.
        """
        said = "in use by"
        while "in use by" in said:  # children of the last one finish their arms
            running, moment = self.start(place), self.draw.uniform(0, self.seconds)
            victim = running.pop(self.draw.randrange(len(running)))
            if number == signal.SIGTERM:  # the handler is there once the run trains
                while victim.poll() is None and not list(place.rglob("metrics.jsonl")):
                    time.sleep(0.01)
                moment /= 2
            with contextlib.suppress(subprocess.TimeoutExpired):
                victim.wait(moment)
            young = harness.descendants(victim.pid)
            victim.send_signal(number)
            if number == signal.SIGKILL and self.draw.random() < 0.5:
                for pid in young:  # of --jobs, which would finish their arms
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            code, *others = harness.codes([victim, *running], LIMIT)
            said = self.log.read_text(errors="replace")
        if {code, *others} == {0}:
            return None
        if number == signal.SIGKILL:  # whoever dies before the processes have met is not found
            # The first process may still write the report of a run that has ended.
            ended = {0} if (place / "summary.json").exists() else set()
            unmet = {2} if "they have not found each other" in said else set()
            good = code == -signal.SIGKILL and set(others) <= {3} | ended | unmet
        else:
            end = 128 + signal.SIGTERM
            good = {code, *others} == {end} and "ended by SIGTERM" in said
        return self.judged(good, [code, *others], said)

    def count(self, tries: int, disturb: Callable[[pathlib.Path], bool | None]) -> Counter:
        """Disturb launches, finish and compare each; return how many were "good" and "bad"."""
        counts: Counter = Counter()
        while counts.total() < tries:
            place = next(self.fresh)
            good = disturb(place)
            if good is None:  # it had ended before
                continue
            self.finish(place)
            found = [f"{path} is left" for path in place.rglob("*")
                     if path.name.endswith((".tmp", ".lock"))]  # fmt: skip
            found += compare(self.kept(self.whole), self.kept(place))
            counts["good" if good and not found else "bad"] += 1
            if found:
                harness.say(f"{self.name} DIFFERS: {found[:5]}: {self.log.read_text()[-1000:]}")
            shutil.rmtree(place)
        return counts

    def full(self, place: pathlib.Path) -> bool | None:
        """Launch on a small disk, and copy its files to a large one; return None if it had room."""
        disk = self.root / f"{self.name}_disk"
        disk.mkdir(exist_ok=True)
        size = f"size={self.draw.choice(SIZES) * 1024 + 4096}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], check=True)
        try:
            (code, *_), said = harness.codes(self.start(disk / "out"), LIMIT), self.log.read_text()
            if (disk / "out").exists():
                shutil.copytree(disk / "out", place)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        if code == 0:
            return None  # it had room
        return self.judged(code in (1, 2) and "No space left" in said, [code], said)

    def judged(self, good: bool, codes: list[int], said: str) -> bool:
        """Return whether a launch left well and without a traceback; print it if not."""
        if good and "Traceback" not in said:
            return True
        harness.say(f"{self.name}: a deviation: exit codes {codes}: {said[-3000:]}")
        return False


def main() -> None:
    options = harness.options(
        __doc__, kills=(100, "by SIGKILL"), terms=(40, "by SIGTERM"),
        disks=(20, "as root; of runs of one process"), seed=(1, "of the moments"),
        ways=([*WAYS], "names"),
    )  # fmt: skip
    bad, is_able = 0, os.geteuid() == 0 and shutil.which("mount")
    on_disk = [name for name in options.ways if WAYS[name].processes == 1 and WAYS[name].virtual]
    print(f"{'fault':9} {'way':12} {'tries':>5} {'as the rule says':>16} {'deviate':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.ways:
            trials = Trials(pathlib.Path(folder), name, random.Random(f"{options.seed} {name}"))
            for fault, tries, among, disturb in (
                ("SIGKILL", options.kills, options.ways, partial(trials.signalled, signal.SIGKILL)),
                ("SIGTERM", options.terms, options.ways, partial(trials.signalled, signal.SIGTERM)),
                ("full disk", options.disks, on_disk if is_able else [], trials.full),
            ):
                share = -(-tries // len(among)) if name in among else 0
                counts = trials.count(share, disturb)
                bad += counts["bad"]
                harness.say(
                    f"{fault:9} {name:12} {share:5} {counts['good']:16} {counts['bad']:7}"
                )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
