"""The phase of this process: the present activity of its main thread, for a watchdog thread.

Entering a phase takes a microsecond, sends no message and never waits.
"""

import collections
import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

PREPARING = "prepares or ends an arm"
COMPILING = "compiles"
INPUT = "waits for its input reader"
CALLBACK = "is in a host callback, of a delay or a waiting rule"
DELAY = "sleeps for a delay"
DEVICES = "waits for its devices"
OTHERS = "waits for the other processes"
EVALUATION = "evaluates"
CHECKPOINT = "writes a checkpoint or a summary"


class Phase(NamedTuple):
    """Snapshot of the progress of this process."""

    what: str
    steps: int  # phases begun or ended so far; the number grows as long as the process goes on
    dispatches: int  # number of dispatches that have ended
    update: int  # number of updates before the last dispatch
    median: float | None  # s, of the last 100 dispatches without compiling; None: no dispatch yet


_what, _steps, _dispatches, _update = PREPARING, 0, 0, 0
_began = 0.0  # monotonic time [s] of the begin of a dispatch, or of the end of its compiling
_callbacks: Callable[[], list[float]] = list
_durations: collections.deque[float] = collections.deque(maxlen=100)


@contextlib.contextmanager
def within(what: str) -> Iterator[None]:
    """Put the main thread into this phase for a block; do nothing in another thread."""
    global _what, _steps, _began
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _what, _steps = _what, what, _steps + 1
    if what == COMPILING:  # another program, with other durations
        _durations.clear()
    try:
        yield
    finally:
        _what, _steps = before, _steps + 1
        if what == COMPILING:
            _began = time.monotonic()


@contextlib.contextmanager
def dispatch(update: int, callbacks: Callable[[], list[float]] = list) -> Iterator[None]:
    """Time a dispatch of rounds after `update` updates.

    callbacks: returns the monotonic times [s] at which host callbacks under way should return.
    """
    global _update, _callbacks, _dispatches, _began
    _update, _callbacks, _began = update, callbacks, time.monotonic()
    with within(DEVICES):
        yield
    _durations.append(time.monotonic() - _began)
    _dispatches += 1


def now() -> Phase:
    """Return the phase of this process; any thread may call this function."""
    what = _what
    if what == DEVICES and (due := _callbacks()):
        what = DELAY if max(due) > time.monotonic() else CALLBACK
    durations = list(_durations)  # a copy, as the main thread may change it
    median = statistics.median_low(durations) if durations else None
    return Phase(what, _steps, _dispatches, _update, median)
