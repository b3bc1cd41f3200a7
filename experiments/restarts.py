"""A command that is started again when its process has lost another one, or was killed itself.

Each of the processes of a run has a parent of its own: all of them end when one does, each parent
starts its process again, and they find each other at the same address and go on from the last
checkpoint. Before that the parents see who is still there (`experiments.roll_call`), so that a run
which has lost a machine for good goes on with fewer processes.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from experiments import endings, roll_call

REFUSED, DEAD = 2, 3  # exit codes, as in `experiments.distributed`, which this does not load
NAMED = ("coordinator_address", "num_processes", "process_id")  # flags of one of several
PAUSE = 1.0  # s before a new start, in which the port of process 0 becomes free


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
        `roll_call.Gone` where there is none. None: the same command.

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
            except (roll_call.Gone, OSError, ValueError) as error:
                say(f"error: {error}")
                return DEAD
        if asked:
            return endings.code(asked[-1])
    return 128 - code if killed else code


def run_again(argv: Sequence[str], restarts: int, place: roll_call.Place | None = None) -> int:
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
    call = roll_call.RollCall(place)

    def again(stopped: Callable[[], bool]) -> list[str]:
        before = call.members
        call.call(stopped)
        if words := roll_call.missing(before, call.members):
            say(words)
        return [*alone, *call.flags()]

    code = run(command, restarts, say, again)
    if code == 0:
        call.close()
    return code
