"""A command that is started again when its process has lost another one, or was killed itself.

Each of the processes of a run has a parent of its own: all of them end when one does, each parent
starts its process again, and they find each other at the same address and go on from the last
checkpoint. Before that the parents see who is still there, so that a run which has lost a machine
for good goes on with fewer processes.

Every parent writes a number that grows into a file of its own, beside the workdir that all of them
share. The parent of process 0 counts as present whose number it sees growing, so that no clocks are
compared, and writes down who goes on. Who has not shown up within `PATIENCE` is taken for gone.
"""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments import endings, files

REFUSED, DEAD = 2, 3  # exit codes, as in `experiments.distributed`, which this does not load
NAMED = ("coordinator_address", "num_processes", "process_id")  # flags of one of several
PAUSE = 1.0  # s before a new start, in which the port of process 0 becomes free
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
        """Return the flags that tell the process of this parent who else there is."""
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


def without_flag(argv: Sequence[str], name: str) -> list[str]:
    """The arguments of a command without a flag that has a value."""
    kept, arguments = [], iter(argv)
    for argument in arguments:
        flag, equals, _ = argument.lstrip("-").partition("=")
        if not (argument.startswith("-") and flag == name):
            kept.append(argument)
        elif not equals:
            next(arguments, None)
    return kept


def run(
    command: Sequence[str],
    restarts: int,
    say: Callable[[str], None] = lambda text: None,
    again: Callable[[Callable[[], bool]], Sequence[str]] | None = None,
) -> int:
    """Run a command, and again for at most `restarts` times; the exit code of the last one.

    again: the command of another start, from whether somebody has asked to end meanwhile; raises
        `Gone` where there is none. None: the same command.

    Signals that ask to end go to the command, in a session of its own, and nothing is restarted
    afterwards. Once it has been started again, a refusal also counts as a loss: the others may
    have needed longer to come back than it waits for them.
    """
    running: list[subprocess.Popen] = []
    asked: list[int] = []

    def pass_on(number: int, _) -> None:
        asked.append(number)
        if running:
            running[-1].send_signal(number)

    for number in (signal.SIGINT, *endings.OTHERS):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    for start in range(restarts + 1):
        running.append(subprocess.Popen(command, start_new_session=True))
        if asked:  # while it was being started
            running[-1].send_signal(asked[-1])
        code = running[-1].wait()
        killed = code < 0
        lost = killed or code == DEAD or (start > 0 and code == REFUSED)
        if asked or not lost or start == restarts:
            break
        how = f"was ended by {signal.Signals(-code).name}" if killed else f"has ended with {code}"
        say(f"this process {how}; it starts again, {start + 1} of {restarts} times")
        time.sleep(PAUSE)
        if again is not None and not asked:
            try:
                command = again(lambda: bool(asked))
            except (Gone, OSError, ValueError) as error:
                say(f"error: {error}")
                return DEAD
        if asked:
            return endings.code(asked[-1])
    return 128 - code if killed else code


def run_again(argv: Sequence[str], restarts: int, place: Place | None = None) -> int:
    """As `run`, the command of this program without `--restarts`.

    place: which process of several this is; None: the command does not say so.
    """
    command = [sys.executable, *without_flag(argv, "restarts")]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if place is None:
        return run(command, restarts, say)
    alone = command
    for name in NAMED:
        alone = without_flag(alone, name)
    call = RollCall(place)

    def again(stopped: Callable[[], bool]) -> list[str]:
        before = call.members
        call.call(stopped)
        if words := missing(before, call.members):
            say(words)
        return [*alone, *call.flags()]

    code = run(command, restarts, say, again)
    if code == 0:
        call.close()
    return code
