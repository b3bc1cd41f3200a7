"""The end of a program at ctrl-C, SIGTERM or SIGHUP.

There are three phases. Until `raising` there is nothing to tidy up: the program prints a sentence
and exits. From then on ctrl-C raises KeyboardInterrupt and other signals raise `Asked`, so that
work under way is tidied up. Within `deferred`, where a run trains, a signal is only noted: the run
asks at every evaluation, makes a checkpoint and raises the exception itself. A second signal of the
same kind raises at once. A scheduler sends its signal to all processes, each of which
also gets it from its parent: a repeat within `SAME` seconds, ctrl-C excepted, does not count.

A signal that was ignored when the program began, such as SIGHUP under nohup, stays ignored. Loading
this module takes no time, so that it can be the first thing that a program does.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

OTHERS = (signal.SIGTERM, signal.SIGHUP)  # beside ctrl-C
SAME = 2.0  # seconds within which a repeated signal counts as one

_asked: list[int] = []  # signals that have been noted and not yet raised
_deferring = 0  # number of `deferred` blocks around the code that runs now
_last: dict[int, float] = {}  # signals and when they came


class Asked(BaseException):
    """An exception for a signal, other than ctrl-C, that asks the program to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def name_of(number: int) -> str:
    """Return the name of a signal; some real-time ones have none."""
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def code(number: int) -> int:
    """Return the exit code of a program that a signal ends."""
    return 128 + number


def sentence(number: int, starts_over: bool = False) -> str:
    """Return what the program prints at a signal; starts_over: the same command starts over."""
    what = "interrupted" if number == signal.SIGINT else f"ended by {name_of(number)}"
    if starts_over:
        return f"{what}; the same command starts over, without --overwrite it goes on"
    return f"{what}; the same command goes on from here"


def handle(handler: Callable | signal.Handlers) -> None:
    """Install a handler for all signals that ask to end, except ignored ones."""
    for number in (signal.SIGINT, *OTHERS):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def begin() -> None:
    """Let a signal print a sentence and exit at once with code 128 + its number from now on."""
    handle(_out)


def _out(number: int, _) -> None:
    # No exception: a library that is half loaded may turn it into another one.
    os.write(2, f"{sentence(number)}\n".encode())
    os._exit(code(number))


def raising() -> None:
    """Let a signal raise in the main thread from now on, if `begin` was called before."""
    if _out not in (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)):
        return
    handle(_raise)
    usual = sys.unraisablehook

    def again(unraisable) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt | Asked):
            # Python drops exceptions of callbacks, so the signal is sent once more.
            number = getattr(unraisable.exc_value, "number", signal.SIGINT)
            _last.clear()
            threading.Timer(0.02, os.kill, (os.getpid(), number)).start()
        else:
            usual(unraisable)

    sys.unraisablehook = again


def _raise(number: int, _) -> None:
    now = time.monotonic()
    if number != signal.SIGINT and now - _last.get(number, -SAME) < SAME:
        return
    _last[number] = now
    if not _deferring or number in _asked:
        end(number)
    _asked.append(number)
    if number == signal.SIGINT:
        os.write(2, b"\nending at the next evaluation; ctrl-C once more ends at once\n")


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Only note signals in this block, whose run looks at `asked`; raise for them at its end."""
    global _deferring
    _deferring += 1
    try:
        yield
    finally:
        _deferring -= 1
    if _asked and not _deferring:
        end(_asked[-1])


def is_deferred() -> bool:
    """Return whether signals are only noted, see `deferred`."""
    return _deferring > 0


def asked() -> int | None:
    """Return the signal that has been noted in this process, or None."""
    return _asked[-1] if _asked else None


def end(number: int) -> None:
    """Raise `Asked`, or KeyboardInterrupt for ctrl-C; noted signals are forgotten."""
    _asked.clear()
    raise KeyboardInterrupt if number == signal.SIGINT else Asked(number)


def out_at_once(code: int | str | None) -> None:
    """Exit at once if the code is a signal's; otherwise ignore signals from now on.

    JAX's runtime may crash if it is taken down while devices compute, so no exit handlers run. With
    other codes the program is done, and no signal is to disturb its end.
    """
    if isinstance(code, int) and code > 128:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    handle(signal.SIG_IGN)
