"""What a workdir holds while runs are under way, and whether anybody still works on it.

Nothing is written there: locks are looked at, records are read.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiments import formats, locks, records, slurm
from experiments.reports import live, panels, timeline, workdirs
from stragglers import schedule

BETWEEN_QUEUES = 30.0  # s between two questions to Slurm
_FOLLOWED = (records.CONFIG, records.METRICS, records.SUMMARY, records.ERROR)


class State(NamedTuple):
    """How far the runs of a workdir are."""

    finished: int
    failed: int
    left: list[Path]  # neither finished nor failed, whether begun or not

    def __str__(self):
        total = self.finished + self.failed + len(self.left)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.finished} of {total} runs have finished{failed}"


def places(root: Path) -> Iterator[Path]:
    """The directories of all runs below a workdir, begun or not; links are not followed."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(set(below) - {records.CHECKPOINT, slurm.FOLDER})
        if records.METRICS in names or records.CONFIG in names:
            yield Path(folder)


def stamp(root: Path) -> tuple:
    """A value that changes when records arrive."""
    found = []
    for place in places(root):
        for name in _FOLLOWED:
            try:
                status = os.stat(place / name)
            except OSError:
                continue
            found.append((str(place), name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def state(root: Path) -> State:
    """How far the runs below a workdir are."""
    finished, failed, left = 0, 0, []
    for place in places(root):
        if (place / records.SUMMARY).exists():
            finished += 1
        elif (place / records.ERROR).exists():
            failed += 1
        else:
            left.append(place)
    return State(finished, failed, left)


class Attendance:
    """Whether a process or a job of Slurm works on a workdir; asked again and again."""

    def __init__(self, root: Path):
        self._root, self._asked, self._queued = root, -BETWEEN_QUEUES, False

    def __bool__(self) -> bool:
        paths = [self._root / locks.LAUNCH, *(place / locks.RUN for place in places(self._root))]
        return any(map(_is_held, paths)) or self._has_jobs()

    def _has_jobs(self) -> bool:
        if not (self._root / slurm.FOLDER).is_dir():
            return False
        if time.monotonic() - self._asked >= BETWEEN_QUEUES:
            self._asked = time.monotonic()
            try:
                self._queued = bool(slurm.under_way(self._root))
            except ValueError:  # Slurm does not answer, and its jobs go on
                self._queued = True
        return self._queued


def _is_held(path: Path) -> bool:
    try:
        locks.check(path)
    except locks.InUse:
        return True
    except (OSError, ValueError):  # no lock of ours
        return False
    return False


def lines(root: Path, arms: list[workdirs.Arm]) -> list[live.Line]:
    """All arms as curves: the finished ones, then every other run with what it has recorded."""
    found = [live.Line(arm.name, arm.runs, True) for arm in arms]
    done = {place for arm in arms for place in arm.places}
    taken = {arm.name for arm in arms}
    for place in places(root):
        if place in done or not (place / records.METRICS).exists():
            continue
        metrics = [
            record
            for record in records.read_metrics(place)
            if formats.complaint(record, formats.WHOLE_LINE.fields, formats.WHOLE_LINE.needed)
            is None
        ]
        if metrics:
            name = records.read_config(place / records.CONFIG).name
            name = name if name not in taken else f"{name}, {place.relative_to(root)}"
            taken.add(name)
            found.append(live.Line(name, [metrics], False))
    return found


class Looks:
    """Looks at the schedules of finished arms, each once."""

    def __init__(self):
        self._known: dict[tuple[Path, int], panels.Look] = {}

    def of(self, arms: list[workdirs.Arm]) -> dict[str, panels.Look]:
        """What the schedule of each arm's first seed shows, of the arms that have one."""
        found = {}
        for arm in arms:
            path = arm.places[0] / records.SCHEDULE
            if not path.exists():
                continue
            key = (path, path.stat().st_mtime_ns)
            if key not in self._known:
                done = schedule.load(path)
                if not done.updates or done.all_workers > arm.summaries[0]["workers"] + 1:
                    continue
                self._known[key] = panels.look(
                    done, arm.summaries[0]["workers"], timeline.MOST_STRETCHES
                )
            found[arm.name] = self._known[key]
        return found
