"""A thread that watches the processes of a run, reacts to what they say, and keeps their clock."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from runtimes import freed_memory
from runtimes.base import WorkersLost
from runtimes.crew import Crew, News
from runtimes.pulse import Pulse
from runtimes.session import Resources

STARTING = 300.0  # s that the processes may take to start
MISSED = 60.0  # s with too few workers after which a run ends
DEATHS = 5  # of one worker in a row, without anything delivered, that end a run
LOOK = 0.5  # s between two looks at who is silent


class Options(NamedTuple):
    """How a run treats its processes."""

    resources: Resources = Resources()
    least_workers: int = 1  # with fewer for long, the run ends
    drops: bool = False  # a contribution that fails or is not finite is left out; else the run ends
    own_model: bool = False  # from which a node that has gone begins anew; else a neighbour's


class Overseer:
    """The processes of a run from when they start until they are ended.

    `turn` guards what they have brought; it is notified whenever something has happened. What goes
    wrong in a thread stands in `error`. A subclass starts the processes and says how to react.
    """

    fewest = 1  # workers that can go on, whatever the options say
    spares = False  # a worker whose processes die again and again; else the run ends

    def __init__(self, workers: int, options: Options):
        freed_memory.keep()
        self.turn = threading.Condition()
        self.error: BaseException | None = None
        self.deaths = 0  # of processes, since the start
        self._workers, self._options = workers, options
        self._pulse, self._closing = Pulse(), False
        self._alive: set[int] = set()
        self._died = dict.fromkeys(range(workers), 0)
        self._least = max(self.fewest, options.least_workers)
        self._missed_since: float | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._elapsed, self._resumed_at = 0.0, None
        self._crew: Crew | None = None

    def now(self) -> float:
        """Seconds of the run."""
        running = 0.0 if self._resumed_at is None else time.monotonic() - self._resumed_at
        return self._elapsed + running

    def pids(self) -> dict[int, int]:
        """The processes of the workers that are ready."""
        return {who: self._crew.place(who).pid for who in sorted(self._alive)}

    def close(self) -> None:
        """End the thread and all processes."""
        with self.turn:
            self._closing = True
            self.turn.notify_all()
        if self._crew is not None:
            self._crew.close()
        if self._thread.is_alive():
            self._thread.join(10)

    def _react(self, news: News) -> None:
        """Take in what has happened to a process."""
        raise NotImplementedError

    def _rest(self) -> float:
        """Seconds for which nothing is to be done unless there is news."""
        return LOOK / 2

    def _wake(self) -> None:
        """Do what is due by now."""

    def _look(self) -> None:
        """End the processes that do not answer any more."""
        raise NotImplementedError

    def _watch(self) -> None:
        """React to news until the run is closed; in a thread of its own."""
        looked = time.monotonic()
        while not self._closing and self.error is None:
            with contextlib.suppress(queue.Empty):
                news = self._crew.news.get(timeout=self._rest())
                self._try(self._react, news)
            self._try(self._wake)
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                self._try(self._look)
                self._try(self._check_enough, looked)

    def _try(self, what: Callable, *arguments: Any) -> None:
        try:
            what(*arguments)
        except BaseException as error:  # it belongs to whoever waits for the run
            self.error = self.error or error
        with self.turn:
            self.turn.notify_all()

    def _died_again(self, who: int, without: str) -> bool:
        """Count a process that has gone; whether its worker is to have another one.

        Raises WorkersLost where new ones go as well and the run cannot spare the worker.
        """
        self._alive.discard(who)
        self.deaths += 1
        self._died[who] += 1
        dying = sum(died > DEATHS for died in self._died.values())
        if dying and not (self.spares and self._workers - dying >= self._least):
            raise WorkersLost(
                f"the process of worker {who} has died {DEATHS} times in a row without {without}; "
                "see its memory, then give the same command again"
            )
        return self._died[who] <= DEATHS

    def _check_enough(self, now: float) -> None:
        """Raise WorkersLost where there have been too few workers for long."""
        if len(self._alive) >= self._least:
            self._missed_since = None
        elif self._missed_since is None:
            self._missed_since = now
        elif now - self._missed_since > MISSED:
            raise WorkersLost(
                f"only {len(self._alive)} of {self._workers} workers are left and no more have "
                f"come for {MISSED:g} s; give the same command again where there are "
                f"{self._least} or more"
            )
