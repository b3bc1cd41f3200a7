"""The restart of a command whose process was killed or has lost another process of its run.

Each process of a run has a parent process. All processes of the run end when one process ends. Each
parent then starts its process again; the processes meet at the same address and resume from the
last checkpoint. Before the restart the parents call the roll, so that a run which has lost a host
goes on with fewer processes. Every parent writes a growing number into a file of its own, beside
the shared workdir. The parent of process 0 counts a parent as present if its number grows, so that
no clocks are compared, and writes the list of processes that go on. A parent that has not appeared
within `PATIENCE` is taken for gone.
"""

import contextlib
import json
import os
import pathlib
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from experiments import endings, files
from experiments.distributed import DEAD, REFUSED, is_queued_again

LAUNCH = "GOSSAX_LAUNCH"  # environment variable with the name that all starts of a launch share
NAMED = ("coordinator_address", "num_processes", "process_id")  # flags of several processes
PAUSE = 1.0  # s before a new start, in which the port of process 0 becomes free
PATIENCE = 60.0  # s for the other parents to appear, also on a slow shared file system
BEAT = 0.5  # s between two numbers of a parent
DECISION = "going_on.json"


class Gone(Exception):
    """An error of a run that cannot go on in this process; its message is the reason."""


class RollCall:
    """The roll call of one parent; `members`: original numbers of the processes that go on."""

    def __init__(self, workdir: str, coordinator: str, processes: int, process: int):
        """coordinator: the address of process 0. process: the number of this parent's process."""
        place = pathlib.Path(workdir).absolute()
        self._folder = place.with_name(f".{place.name}.restarts")
        self._coordinator, self._me, self._beats = coordinator, process, 0
        self.members: tuple[int, ...] = tuple(range(processes))
        self._decision = self._read(DECISION)  # the last call's, or an earlier launch's

    def call(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Set `members` to the processes that go on; raises Gone if this process cannot go on.

        stopped: returns whether this parent is to end; the roll call then ends early.
        """
        files.make(self._folder)
        begun, old = time.monotonic(), self._decision
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
                self._decision, self.members = found, tuple(found["members"])
                break
            elif waited > 2 * PATIENCE:
                raise Gone(
                    f"process 0, at whose address {self._coordinator} the others meet, has not "
                    f"come back within {2 * PATIENCE:g} s; start all of them again"
                )
            time.sleep(BEAT)
        if self._me not in self.members:
            raise Gone(
                f"process {self._me} has come back too late, and processes "
                f"{', '.join(map(str, self.members))} have gone on without it; let them end, then "
                "start all of them again"
            )

    def flags(self) -> list[str]:
        """Return the flags of this parent's process among several, or [] if it is alone."""
        values = (self._coordinator, len(self.members), self.members.index(self._me))
        named = [f"--{name}={value}" for name, value in zip(NAMED, values, strict=True)]
        return named if len(self.members) > 1 else []

    def close(self) -> None:
        """Remove the folder of the roll calls, in the parent of process 0, after the run."""
        if self._me == 0:
            files.remove_tree(self._folder)

    def _read(self, name: str):
        with contextlib.suppress(OSError, ValueError):  # the file is missing or being written
            return json.loads(files.read_text(self._folder / name))
        return None

    def _write(self, name: str, value) -> None:
        files.write(self._folder / name, json.dumps(value), durable=False)


def without(argv: Iterable[str], valued: Iterable[str], switches: Iterable[str] = ()) -> list[str]:
    """Return the arguments of a command without `valued` flags, their values, and `switches`."""
    kept, arguments = [], iter(argv)
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in valued:
            if not equals:
                next(arguments, None)  # its value
        elif not (argument.startswith("-") and name.removeprefix("no") in switches):
            kept.append(argument)
    return kept


def names(environment: Mapping[str, str], earlier: bool = False) -> set[str]:
    """Return the names that all starts of this launch share: its job of Slurm, and LAUNCH of `run`.

    earlier: only names under which the launch may have been started before. The job is left out
    unless Slurm has queued the job again, as one job may contain several launches.
    """
    found = {environment.get(LAUNCH, "")}
    if not earlier or is_queued_again(environment):
        found.add(environment.get("SLURM_JOB_ID", ""))
    return found - {""}


def run(argv: Sequence[str], restarts: int, call: RollCall | None = None) -> int:
    """Run a Python command, restart it at most `restarts` times, and return its last exit code.

    argv: the arguments of Python. call: the roll call, if the command is one of several processes.

    Signals that ask to end are passed to the command, in a process group of its own, and prevent
    restarts. After a restart, the exit code REFUSED also counts as a loss: the other processes may
    have returned later than the command waits for them.
    """
    argv, environment = without(argv, ["restarts"]), os.environ | {LAUNCH: secrets.token_hex(8)}
    flags, running, asked = [], None, []

    def pass_on(number: int, _) -> None:
        asked.append(number)
        if running is not None:
            running.send_signal(number)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    endings.handle(pass_on)
    for start in range(restarts + 1):
        running = subprocess.Popen(
            [sys.executable, *argv, *flags], env=environment, start_new_session=True
        )
        if asked:  # while it was being started
            running.send_signal(asked[-1])
        code = running.wait()
        killed = code < 0
        lost = killed or code == DEAD or (start > 0 and code == REFUSED)
        if asked or not lost or start == restarts:
            break
        how = f"was ended by {endings.name_of(-code)}" if killed else f"has ended with {code}"
        say(f"this process {how}; it starts again, {start + 1} of {restarts} times")
        time.sleep(PAUSE)
        if call is not None and not asked:
            before = call.members
            try:
                call.call(stopped=lambda: bool(asked))
            except (Gone, OSError, ValueError) as error:
                say(f"error: {error}")
                return DEAD
            if gone := sorted(set(before) - set(call.members)):
                who = f"process {gone[0]} has" if len(gone) == 1 else f"processes {gone} have"
                left = f"{len(call.members)} of {len(before)}"
                say(f"{who} not come back; the run goes on with {left} processes")
            argv, flags = without(argv, NAMED), call.flags()
        if asked:
            return endings.code(asked[-1])
    if code == 0 and call is not None:
        call.close()
    return 128 - code if killed else code
