"""Whether sweeps survive an hour of accidents.

    python -m benchmarks.endurance --minutes=10
    python -m benchmarks.endurance --full     # 1,000 arms, 100 kills
    python -m benchmarks.endurance --mesh     # 10,000 rounds with real delays

A sweep of many small arms runs undisturbed, and again while it is killed by SIGKILL at random
moments, with and without the processes that it has started, while files cannot grow, as on a full
disk, and after one of its files was damaged. Half of the arms run with --together, half with
--jobs=2. What is left has to be bit for bit what the undisturbed sweep leaves, but for what the
wall clock says, and with --together for the rounding of arms that had to run again without others.
"""

import math
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter

from absl import app, flags

from benchmarks.kill_and_resume import ROOT, Left, left  # and its --seed, here of the accidents
from benchmarks.processes import children, kill

_MINUTES = flags.DEFINE_float("minutes", 10.0, "How long it may take, about.", lower_bound=1)
_FULL = flags.DEFINE_bool("full", False, "1,000 arms and 100 kills, however long that takes.")
_MESH = flags.DEFINE_bool("mesh", False, "10,000 rounds of a mesh with delays instead.")
_ROUNDS = flags.DEFINE_integer("rounds", 10_000, "Of --mesh.", lower_bound=1)

STUCK = 120.0  # s without a new record
TOGETHER = "together"  # an arm that has to run again alone is another program, which rounds
WAYS = {TOGETHER: ("--together",), "jobs": ("--jobs=2",)}
CONFIG = """
from configs import nonblocking

def get_config():
    config = nonblocking.get_config()
    config.task = "synthetic_logistic(samples=512, dimension=16)"
    config.seconds, config.evaluate_every, config.updates = 40.0, 1.0, 100000
    config.name, config.baseline, config.target_loss = "all_reduce/0", None, None
    return config

def sweep():
    for number in range({arms}):
        yield f"all_reduce/{{number}}", {{"seed": number}}
"""


class Sweep:
    """One sweep in one way, and what has happened to it."""

    def __init__(self, root: pathlib.Path, way: str, arms: int, moments: random.Random):
        self.place, self.way, self.arms, self.moments = root / way, way, arms, moments
        self.config = root / f"{way}.py"
        self.config.write_text(CONFIG.format(arms=arms))
        self.survived: Counter = Counter()
        self.log = root / f"{way}.log"

    def start(self, place: pathlib.Path, largest_file: int | None = None) -> subprocess.Popen:
        """The launch as a process; no file of it can grow beyond `largest_file` bytes."""

        def ration() -> None:
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        command = [sys.executable, "launch.py", f"--config={self.config}", "--sweep"]
        command += [f"--workdir={place}", "--checkpoint_seconds=0", *WAYS[self.way]]
        with self.log.open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, preexec_fn=ration)

    def finish(self, place: pathlib.Path) -> None:
        """Launch until all is done; a launch is refused while children of a killed one run."""
        until = time.monotonic() + 600
        while self.start(place).wait():
            if time.monotonic() > until:
                raise SystemExit(f"no end:\n{self.log.read_text()[-3000:]}")
            time.sleep(1)

    def kill(self, seconds: float) -> None:
        """SIGKILL a launch at a random moment, half of the time with its children."""
        process = self.start(self.place)
        time.sleep(self.moments.uniform(0, seconds))
        young = children(process.pid)
        process.kill()
        if process.wait() >= 0:
            self.survived["launches that had ended before their kill"] += 1
            return
        self.survived["kills"] += 1
        if self.moments.random() < 0.5:
            for pid in young:
                if kill(pid):
                    self.survived["kills of a child"] += 1

    def fill(self) -> None:
        """Let no file grow beyond a random size: what is written then fails."""
        process = self.start(self.place, self.moments.choice((0, 200, 2_000, 20_000)))
        if process.wait():
            self.survived["full disks"] += 1

    def damage(self) -> None:
        """Cut off the summary of a finished arm; its sentence, then the arm anew."""
        finished = sorted(self.place.glob("all_reduce/*/summary.json"))
        if not finished:
            return
        file = self.moments.choice(finished)
        file.write_text(file.read_text()[: self.moments.randrange(1, 20)])
        code = self.start(self.place).wait()
        while code == 2 and "in use by" in self.log.read_text()[-2000:]:
            time.sleep(1)
            code = self.start(self.place).wait()
        if code == 0:
            raise SystemExit(f"{file} was damaged, and nobody has noticed")
        if str(file) not in self.log.read_text():
            raise SystemExit(f"{file} was damaged, and nobody names it")
        shutil.rmtree(file.parent)
        self.survived["damaged files"] += 1

    def equal(self, whole: pathlib.Path) -> tuple[int, int]:
        """How many arms are what they are in the undisturbed sweep, bit for bit or to rounding."""
        names = [f"all_reduce/{number}" for number in range(self.arms)]
        both = [(left(self.place / name), left(whole / name)) for name in names]
        exact = sum(one == other for one, other in both)
        return exact, sum(one != other and rounded(one, other) for one, other in both)


def rounded(one: Left, other: Left) -> bool:
    """Whether two runs differ by no more than rounding: the same clock, nearly the same losses."""
    for mine, its in zip(one.metrics, other.metrics, strict=True):
        if (mine["update"], mine["seconds"]) != (its["update"], its["seconds"]):
            return False
        if not math.isclose(mine["train_loss"], its["train_loss"], rel_tol=1e-4):
            return False
    return True


def endure(root: pathlib.Path, way: str, arms: int, kills: int, until: float) -> bool:
    """One sweep with its accidents; whether it ends as the undisturbed one."""
    sweep = Sweep(root, way, arms, random.Random(f"{flags.FLAGS.seed} {way}"))
    whole, began = root / f"{way}_whole", time.monotonic()
    sweep.finish(whole)
    seconds = time.monotonic() - began
    print(f"{way}: {arms} arms undisturbed in {seconds:.0f} s", flush=True)
    sweep.fill()
    for number in range(kills):
        if time.monotonic() > until:
            break
        sweep.kill(min(seconds, 20 + seconds / kills))
        if number == kills // 2:
            sweep.fill()
            sweep.damage()
    sweep.finish(sweep.place)
    if not sweep.survived["damaged files"]:
        sweep.damage()
        sweep.finish(sweep.place)
    exact, close = sweep.equal(whole)
    accidents = ", ".join(f"{count} {what}" for what, count in sweep.survived.items())
    print(
        f"{way}: {exact} of {arms} arms equal, {close} more to rounding, after {accidents}",
        flush=True,
    )
    return exact + close * (way == TOGETHER) == arms


def mesh(root: pathlib.Path) -> bool:
    """A mesh of eight devices with delays; whether it comes to its last round."""
    place, rounds = root / "mesh", _ROUNDS.value
    changes = ("runtime=mesh", "wait=deadline(seconds=0.01)", f"updates={rounds}", "seconds=1e6")
    changes += ("delay=jitter(mean=0.001, sigma=1.0)", "mini_batches=4", "evaluate_every=5")
    changes += ("task=synthetic_logistic(samples=512, dimension=16)", "target_loss=None")
    command = [sys.executable, "launch.py", "--config=configs/nonblocking.py"]
    command += [f"--workdir={place}", *(f"--config.{change}" for change in changes)]
    with (root / "mesh.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    metrics, seen, last, began = place / "metrics.jsonl", -1, time.monotonic(), time.monotonic()
    while process.poll() is None:
        time.sleep(1)
        grown = metrics.stat().st_size if metrics.exists() else 0
        if grown != seen:
            seen, last = grown, time.monotonic()
        if time.monotonic() - last > STUCK:
            process.kill()
            process.wait()
            print(f"mesh: STUCK, no record for {STUCK:.0f} s")
            return False
    if process.returncode:
        print((root / "mesh.log").read_text()[-3000:])
        return False
    made = left(place).summary["updates"]
    print(f"mesh: {made} of {rounds} rounds with delays in {time.monotonic() - began:.0f} s")
    return made == rounds


def main(_) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        if _MESH.value:
            sys.exit(0 if mesh(root) else 1)
        arms = 500 if _FULL.value else max(2, round(_MINUTES.value))
        kills = 50 if _FULL.value else max(2, round(_MINUTES.value * 2))
        share = float("inf") if _FULL.value else _MINUTES.value * 60 / len(WAYS)
        good = [
            endure(root, way, arms, kills, began + share * (number + 0.7))
            for number, way in enumerate(WAYS)
        ]
    print(f"in all {time.monotonic() - began:.0f} s")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    app.run(main)
