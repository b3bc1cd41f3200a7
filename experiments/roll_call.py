"""Who of the processes of a run is still there, asked by their parents before a new start.

Every parent writes a number that grows into a file of its own, beside the workdir that all of them
share. The parent of process 0 counts as present whose number it sees growing, so that no clocks are
compared, and writes down who goes on. Who has not shown up within `PATIENCE` is taken for gone.
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments import files

PATIENCE = 60.0  # s for the others to show up, in which a shared file system shows what is new
BEAT = 0.5  # s between two numbers
DECISION = "going_on.json"


class Gone(Exception):
    """The run cannot go on here; says why in a sentence."""


class Place(NamedTuple):
    """A process of a run, as its command names it."""

    workdir: str
    process: int
    processes: int
    coordinator: str  # the address of process 0


class RollCall:
    """The roll call of one parent; `members`: the processes that go on, by their first numbers."""

    def __init__(self, place: Place):
        workdir = pathlib.Path(place.workdir).absolute()
        self._folder = workdir.with_name(f".{workdir.name}.restarts")
        self._me = place.process
        self.members: tuple[int, ...] = tuple(range(place.processes))
        self._place, self._beats = place, 0

    def call(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Find out who goes on; raises Gone where this process does not.

        stopped: whether somebody has asked this parent to end, which ends the call.
        """
        files.make(self._folder)
        begun, old = time.monotonic(), self._read(DECISION)
        first = {member: self._read(f"{member}.json") for member in self.members}
        while not stopped():
            waited = time.monotonic() - begun
            self._beats += 1
            self._write(f"{self._me}.json", self._beats)
            if self._me == 0:
                there = {m for m, seen in first.items() if self._read(f"{m}.json") != seen} | {0}
                if waited > PATIENCE or there == set(self.members):
                    self.members = tuple(sorted(there))
                    self._write(DECISION, {"members": self.members, "at": time.time_ns()})
                    return
            elif (found := self._read(DECISION)) not in (None, old):
                self.members = tuple(found["members"])
                break
            elif waited > 2 * PATIENCE:
                raise Gone(
                    f"process 0, at whose address {self._place.coordinator} the others meet, has "
                    f"not come back within {2 * PATIENCE:g} s; start all of them again"
                )
            time.sleep(BEAT)
        if self._me not in self.members:
            raise Gone(
                f"process {self._me} has come back too late, and processes "
                f"{', '.join(map(str, self.members))} have gone on without it; let them end, then "
                "start all of them again"
            )

    def flags(self) -> list[str]:
        """What tells the process of this parent who else there is."""
        if len(self.members) == 1:
            return []
        return [
            f"--coordinator_address={self._place.coordinator}",
            f"--num_processes={len(self.members)}",
            f"--process_id={self.members.index(self._me)}",
        ]

    def close(self) -> None:
        """Remove what has been written, once the run is done."""
        if self._me == 0:
            files.remove_tree(self._folder)

    def _read(self, name: str):
        with contextlib.suppress(OSError, ValueError):  # nobody has written it, or just does
            return json.loads(files.read_text(self._folder / name))
        return None

    def _write(self, name: str, value) -> None:
        files.write(self._folder / name, json.dumps(value), durable=False)


def missing(before: Sequence[int], after: Sequence[int]) -> str:
    """A sentence about who has not come back; empty if all have."""
    gone = sorted(set(before) - set(after))
    if not gone:
        return ""
    who = f"process {gone[0]} has" if len(gone) == 1 else f"processes {gone} have"
    return f"{who} not come back; the run goes on with {len(after)} of {len(before)} processes"
