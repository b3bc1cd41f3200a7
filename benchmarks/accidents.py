"""Whether launches survive accidents, counted: kills, signals, full disks, processes that disagree.

    python -m benchmarks.accidents --kills=100 --terms=40 --disks=20 --pairs=20 --seed=1

Tiny runs in five ways: the simulator, a sweep with --together, one with --jobs=2, a mesh of four
devices, the same on two processes. Accidents come at random moments.

    kills   SIGKILL to one process: another one of the run says so and leaves with exit code 3
    terms   SIGTERM to one process: the exit code is 143, of all processes of the run
    disks   a disk of some kilobytes, as root: a sentence that says so, exit code 1 or 2
    pairs   two processes that differ in one entry: both say in which, exit code 2, nothing written

After all but the last the same command ends as if nothing had happened: bit for bit in virtual
time, with the same parameters and counters on a mesh, and with no file left over. A traceback
counts as a deviation. What is launched is `launch.py`, forked from a process that has loaded JAX
and not begun with it, see `benchmarks.launches`.
"""

import argparse
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence

from benchmarks.kill_and_resume import left
from benchmarks.launches import CONFIG, WAYS, Process, Way, load
from benchmarks.processes import children, kill

# Entries in which two processes may differ, with values that each of them can have.
ENTRIES = {
    "config.seed": ("0", "1", "4294967295"),
    "config.optimizer.learning_rate": ("0.1", "0.2", "0.30000001"),
    "config.batch_size": ("8", "4"),
    "config.mini_batches": ("1", "2", "3"),
    "config.updates": ("40", "20"),
    "config.algorithm": ("all_reduce", "dpsgd", "local_sgd"),
    "config.rounds_per_dispatch": ("2", "4"),
    "config.task": tuple(f"synthetic_logistic(samples=512, dimension={n})" for n in (8, 9)),
    "config.wait": ("barrier", "deadline(seconds=0.1)"),
    "config.delay": ("none", "exponential(scale=0.01)", "exponential(scale=0.02)"),
    "config.workers": ("4", "8"),
    "config.split": ("iid", "dirichlet(alpha=0.3)"),
    "config.target_loss": ("None", "0.1"),
    "config.evaluate_every": ("0.2", "0.3"),
    "seeds": ("1", "2"),
    "overwrite": ("true", "false"),
}
SIZES = (0, 16, 24, 32, 48, 64, 96, 128, 200, 300)  # kB of a small disk


class Trials:
    """Accidents of one way of launching, below a directory."""

    def __init__(self, root: pathlib.Path, name: str, draw: random.Random):
        self.root, self.name, self.way, self.draw = root, name, WAYS[name], draw
        self.config, self.log, self.made = root / f"{name}.py", root / f"{name}.log", 0
        self.config.write_text(CONFIG)
        self.whole = self.fresh()
        self.longest = self.seconds = self.finish(self.whole)
        self.counts: dict[str, Counter] = {}

    def fresh(self) -> pathlib.Path:
        """A workdir that is not there yet."""
        self.made += 1
        return self.root / f"{self.name}_{self.made}"

    def start(self, place: pathlib.Path, own: Sequence[Sequence[str]] = ((), ())) -> list[Process]:
        """All processes of a launch, with flags of their own; what they print is in `self.log`."""
        self.log.unlink(missing_ok=True)
        flags = [f"--config={self.config}", f"--workdir={place}", "--checkpoint_seconds=0"]
        flags += self.way.flags
        if self.way.processes == 1:
            return [Process(flags, self.log)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            where = f"--coordinator_address=127.0.0.1:{free.getsockname()[1]}"
        flags += [where, f"--num_processes={self.way.processes}"]
        return [
            Process([*flags, f"--process_id={number}", *own[number]], self.log)
            for number in range(self.way.processes)
        ]

    def printed(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def finish(self, place: pathlib.Path) -> float:
        """Launch until all is done; return the CPU seconds of the last launch.

        Children of a killed launch may still be at work.
        """
        while True:
            running = self.start(place)
            if not any([process.wait() for process in running]):
                return max(process.cpu_seconds for process in running)
            if "in use by" not in self.printed():
                raise SystemExit(f"no end of {self.name}:\n{self.printed()[-3000:]}")
            time.sleep(1)

    def equal(self, place: pathlib.Path) -> bool:
        """Whether a finished run is the undisturbed one, and nothing else is left."""
        over = [path for path in place.rglob("*") if path.name.endswith((".tmp", ".lock"))]
        arms = [""] if self.way.arms == 1 else [f"all_reduce/{n}" for n in range(self.way.arms)]
        return not over and all(
            _result(place / arm, self.way) == _result(self.whole / arm, self.way) for arm in arms
        )

    def shoot(self, place: pathlib.Path, number: int) -> tuple[bool, list[int], str] | None:
        """Launch and send a signal to one process: which, all exit codes, what was printed.

        None: it had ended before.
        """
        running, moment = self.start(place), self.draw.uniform(0, self.seconds)  # of CPU time
        victim = self.draw.randrange(len(running))
        while not all(process.listens() for process in running):
            time.sleep(0.005)
        while not running[victim].worked(moment):
            time.sleep(0.005)
        young = children(running[victim].pid)
        running[victim].send(number)
        if number == signal.SIGKILL and self.draw.random() < 0.5:
            for pid in young:  # of --jobs, which would finish their arms
                kill(pid)
        codes = [process.wait() for process in running]
        if "in use by" in self.printed():  # children of the last one, which finish their arms
            time.sleep(1)
            return self.shoot(place, number)
        if not any(codes):
            self.seconds = max(running[victim].cpu_seconds, self.longest / 4)
            return None
        return codes.pop(victim), codes, self.printed()

    def counted(self, accident: str) -> Counter:
        """How many accidents ended "good", as the rule says, and "bad"."""
        return self.counts.setdefault(accident, Counter())

    def tell(self) -> None:
        """Say on stderr how far it is, as tries take long."""
        counted = ", ".join(f"{what} {dict(count)}" for what, count in self.counts.items())
        print(f"{self.name}: {counted}", file=sys.stderr, flush=True)

    def shots(self, number: int, tries: int, fits: Callable[..., bool]) -> None:
        """Send a signal to many launches; every run that was cut off is finished and compared."""
        counts, place, before = self.counted(signal.Signals(number).name), self.fresh(), Counter()
        while counts.total() < tries:
            shot = self.shoot(place, number)
            if shot is not None:
                before["good" if fits(*shot) else "bad"] += 1
                if not fits(*shot):
                    print(f"{self.name}: {shot}", flush=True)
            if shot is None or counts.total() + before.total() >= tries:
                if shot is not None:
                    self.finish(place)
                if not self.equal(place):
                    print(f"{self.name}: {place.name} DIFFERS", flush=True)
                    before = Counter(bad=before.total())
                counts.update(before)
                self.tell()
                before = Counter()
                shutil.rmtree(place)
                place = self.fresh()

    def disks(self, tries: int) -> None:
        """Launch on disks that become full; nothing where no disk can be mounted."""
        counts, disk = self.counted("full disk"), self.root / f"{self.name}_disk"
        disk.mkdir()
        while counts.total() < tries:
            if _mount(disk, f"size={self.draw.choice(SIZES) * 1024 + 4096}"):
                return
            try:
                place = disk / "out"
                codes = [process.wait() for process in self.start(place)]
                said = self.printed()
                if not any(codes):
                    continue  # it had room
                good = codes[0] in (1, 2) and "No space left" in said and "Traceback" not in said
                _mount(disk, "remount,size=50m")
                self.finish(place)
                good &= self.equal(place)
                counts["good" if good else "bad"] += 1
                self.tell()
                if not good:
                    print(f"{self.name}: {codes} {said}", flush=True)
            finally:
                subprocess.run(["umount", str(disk)], check=True)

    def pairs(self, tries: int) -> None:
        """Launch processes that differ in an entry."""
        counts = self.counted("disagree")
        for _ in range(tries):
            entry = self.draw.choice(sorted(ENTRIES))
            values = self.draw.sample(ENTRIES[entry], 2)
            place = self.fresh()
            running = self.start(place, own=[(f"--{entry}={value}",) for value in values])
            codes, said = [process.wait() for process in running], self.printed()
            sentences = re.findall("^error: .*", said, re.MULTILINE)
            good = codes == [2, 2] and "Traceback" not in said and not place.exists()
            good &= len(sentences) == 2 and all(entry in sentence for sentence in sentences)
            counts["good" if good else "bad"] += 1
            self.tell()
            if not good:
                print(f"{self.name}: {entry} {values} {codes} {said}", flush=True)


def _mount(place: pathlib.Path, options: str) -> int:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def _result(place: pathlib.Path, way: Way) -> object:
    """What of a run must be equal."""
    found = left(place)
    if way.virtual:
        return found
    counters = [found.summary[name] for name in ("updates", "samples", "train_loss")]
    return counters, {k: v for k, v in found.arrays.items() if k[0] == "parameters.npz"}


def _killed(victim: int, others: list[int], said: str) -> bool:
    return victim == -signal.SIGKILL and set(others) <= {3} and "Traceback" not in said


def _ended(victim: int, others: list[int], said: str) -> bool:
    words = "ended by SIGTERM" in said and "Traceback" not in said
    return words and {victim, *others} == {128 + signal.SIGTERM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--terms", type=int, default=40)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(WAYS), help="ways, with commas")
    options = parser.parse_args()
    names, bad = options.only.split(","), 0
    root = pathlib.Path(tempfile.mkdtemp())
    load(root / "programs")
    print(f"{'accident':9} {'way':10} {'tries':>5} {'as the rule says':>16} {'deviate':>7}")
    on_disk = [name for name in names if WAYS[name].processes == 1 and WAYS[name].virtual]
    several = [name for name in names if WAYS[name].processes > 1]

    def share(tries: int, ways: list[str], name: str) -> int:
        """How many of the tries one of the ways gets."""
        return tries // len(ways) + (ways.index(name) < tries % len(ways)) if name in ways else 0

    try:
        for name in names:
            trials = Trials(root, name, random.Random(f"{options.seed} {name}"))
            try:
                trials.shots(signal.SIGKILL, share(options.kills, names, name), _killed)
                trials.shots(signal.SIGTERM, share(options.terms, names, name), _ended)
                trials.disks(share(options.disks, on_disk, name))
                trials.pairs(share(options.pairs, several, name))
            finally:  # also of a part
                for accident, counts in trials.counts.items():
                    bad += counts["bad"]
                    row = f"{counts.total():5} {counts['good']:16} {counts['bad']:7}"
                    print(f"{accident:9} {name:10} {row}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
