"""The end of a program that is asked to by ctrl-C, SIGTERM or SIGHUP.

Three phases. Until `raising` there is nothing to tidy up: a sentence, and out. From then on ctrl-C
is a KeyboardInterrupt and the others are `Asked`, both of which undo what is under way. Within
`deferred`, where a run trains, a signal is only noted: the run asks at every evaluation, makes a
checkpoint and raises the exception itself. A second one does not wait for that, but a scheduler
sends its signal to all processes, each of which also gets it from the one that started it: the same
one again within `SAME` seconds, ctrl-C excepted, counts once.

A signal that was ignored when the program began, as SIGHUP under nohup, stays ignored. Loading this
module takes no time, so that it can be the first thing that a program does.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

OTHERS = (signal.SIGTERM, signal.SIGHUP)  # beside ctrl-C
SAME = 2.0  # seconds, within which a signal that comes again is the one that was sent before


class Asked(BaseException):
    """The program was asked to end by a signal, and has made a checkpoint of what it trained."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


_asked: list[int] = []  # signals that have been noted and not yet raised
_deferring = 0  # nested `deferred`
_last: dict[int, float] = {}  # signals and when they came


def name_of(number: int) -> str:
    """Return the name of a signal; some real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def code(number: int) -> int:
    """Return the exit code of a program that a signal ends."""
    return 128 + number


def sentence(number: int, starts_over: bool = False) -> str:
    """Return what the program says then; starts_over: the same command would not go on."""
    what = "interrupted" if number == signal.SIGINT else f"ended by {name_of(number)}"
    if starts_over:
        return f"{what}; the same command starts over, without --overwrite it goes on"
    return f"{what}; the same command goes on from here"


def out_at_once(code: int | str | None) -> None:
    """Leave with the exit code of a signal without waiting for what devices still compute.

    Their runtime may crash where it is taken apart in the middle of that. With other codes the
    program is done, and no signal disturbs the rest.
    """
    if isinstance(code, int) and code > 128:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    handle(signal.SIG_IGN)


def begin() -> None:
    """From now on a signal is a sentence and the exit code 128 + its number, at once."""
    handle(_out)


def raising() -> None:
    """From now on a signal is an exception in the main thread, if `begin` was called before."""
    if _out not in (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)):
        return
    handle(_raise)
    usual = sys.unraisablehook

    def again(unraisable) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt | Asked):
            # It came in a callback, where Python drops exceptions: it comes once more.
            number = getattr(unraisable.exc_value, "number", signal.SIGINT)
            _last.clear()
            threading.Timer(0.02, os.kill, (os.getpid(), number)).start()
        else:
            usual(unraisable)

    sys.unraisablehook = again


def handle(handler: Callable | signal.Handlers) -> None:
    """Have a handler for all signals that ask to end, but for those that are ignored."""
    for number in (signal.SIGINT, *OTHERS):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _out(number: int, _) -> None:
    # No exception: a library that is half loaded may turn it into another one.
    os.write(2, f"{sentence(number)}\n".encode())
    os._exit(code(number))


def _raise(number: int, _) -> None:
    now = time.monotonic()
    if number != signal.SIGINT and now - _last.get(number, -SAME) < SAME:
        return
    _last[number] = now
    if _deferring and number not in _asked:
        _asked.append(number)
        if number == signal.SIGINT:
            os.write(2, b"\nending at the next evaluation; ctrl-C once more ends at once\n")
        return
    end(number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within this, a signal waits for whoever looks at `asked`; at its end for nobody."""
    global _deferring
    _deferring += 1
    try:
        yield
    finally:
        _deferring -= 1
    if _asked and not _deferring:
        end(_asked[-1])


def is_deferred() -> bool:
    """Return whether a run trains that looks at `asked` by itself."""
    return _deferring > 0


def asked() -> int | None:
    """Return the signal that has been noted in this process, or None."""
    return _asked[-1] if _asked else None


def end(number: int) -> None:
    """Raise `Asked`, or KeyboardInterrupt; whatever was noted is thereby answered."""
    _asked.clear()
    raise KeyboardInterrupt if number == signal.SIGINT else Asked(number)
