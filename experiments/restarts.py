"""The restart of a command whose process was killed or has lost another process of its run.

Each process of a run has a parent process. All processes of the run end when one process ends. Each
parent then starts its process again; the processes meet at the same address and resume from the
last checkpoint. Before the restart the parents call the roll, so that a run which has lost a host
goes on with fewer processes: the parent of process 0 listens where process 0 will, the others send
it their numbers, and get the numbers of all that go on. A parent that has not appeared within
`PATIENCE` is taken for gone.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from experiments import endings
from experiments.distributed import DEAD, REFUSED, is_queued_again, listening, place_of

LAUNCH = "GOSSAX_LAUNCH"  # environment variable with the name that all starts of a launch share
NAMED = ("coordinator_address", "num_processes", "process_id")  # flags of several processes
PAUSE = 1.0  # s before a new start, in which the port of process 0 becomes free
PATIENCE = 60.0  # s for the other parents to appear
BEAT = 0.5  # s between two looks at signals and the network


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


def call_the_roll(
    address: str, members: Sequence[int], me: int, stopped: Callable[[], bool] = lambda: False
) -> list[int]:
    """Return the processes that go on, by their first numbers; ValueError if `me` cannot go on.

    address: of process 0. members: the processes that were there before, of which this one is `me`.
    stopped: returns whether this parent is to end; the roll call then ends early.
    """
    begun = time.monotonic()
    if me == 0:
        there: dict[int, socket.socket | None] = {0: None}
        with listening(address) as server, contextlib.ExitStack() as opened:
            server.settimeout(BEAT)
            while time.monotonic() - begun < PATIENCE and set(there) != set(members):
                if stopped():
                    break
                with contextlib.suppress(OSError, ValueError):  # nobody yet, or somebody else
                    peer = opened.enter_context(server.accept()[0])
                    peer.settimeout(BEAT)
                    number = json.loads(peer.makefile().readline(64))
                    there |= {number: peer} if number in members else {}
            for peer in filter(None, there.values()):
                with contextlib.suppress(OSError):
                    peer.sendall(f"{json.dumps(sorted(there))}\n".encode())
        return sorted(there)
    while not stopped():
        with (
            contextlib.suppress(OSError, ValueError),  # not there yet, or its process still is
            socket.create_connection(place_of(address), BEAT) as peer,
        ):
            peer.sendall(f"{me}\n".encode())
            answer = b""
            while answer[:1] in b"[" and not answer.endswith(b"\n") and not stopped():
                with contextlib.suppress(TimeoutError):
                    answer += peer.recv(4096) or b"\n"  # the end, if it has gone
                if not answer and time.monotonic() - begun > 2 * PATIENCE:
                    break
            if isinstance(going := json.loads(answer), list):
                return going
        if time.monotonic() - begun > 2 * PATIENCE:
            raise ValueError(
                f"process 0, at whose address {address} the others meet, has not come back within "
                f"{2 * PATIENCE:g} s, or has gone on without process {me}; start all of them again"
            )
        time.sleep(BEAT)
    return list(members)


def run(
    argv: Sequence[str], restarts: int, address: str = "", processes: int = 1, process: int = 0
) -> int:
    """Run a Python command, restart it at most `restarts` times, and return its last exit code.

    argv: the arguments of Python. address: of process 0, if the command is one of several processes
    that are started with their numbers. process: the number of this one.

    Signals that ask to end are passed to the command, in a process group of its own, and prevent
    restarts. After a restart, the exit code REFUSED also counts as a loss: the other processes may
    have returned later than the command waits for them.
    """
    argv, environment = without(argv, ["restarts"]), os.environ | {LAUNCH: secrets.token_hex(8)}
    running, asked, members = None, [], list(range(processes))

    def pass_on(number: int, _) -> None:
        asked.append(number)
        if running is not None:
            running.send_signal(number)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    endings.handle(pass_on)
    for start in range(restarts + 1):
        running = subprocess.Popen(
            [sys.executable, *argv], env=environment, start_new_session=True
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
        if address and not asked:
            before = members
            try:
                members = call_the_roll(address, before, process, lambda: bool(asked))
            except (OSError, ValueError) as error:
                say(f"error: {error}")
                return DEAD
            if gone := sorted(set(before) - set(members)):
                who = f"process {gone[0]} has" if len(gone) == 1 else f"processes {gone} have"
                left = f"{len(members)} of {len(before)}"
                say(f"{who} not come back; the run goes on with {left} processes")
            argv = without(argv, NAMED)
            if len(members) > 1:
                values = (address, len(members), members.index(process))
                pairs = zip(NAMED, values, strict=True)
                argv += [f"--{name}={value}" for name, value in pairs]
        if asked:
            return endings.code(asked[-1])
    return 128 - code if killed else code
