"""A node: a worker that makes its local steps, asks others to meet, and answers while it computes.

One thread makes the local steps and asks whomever the waiting rule says, others answer. A meeting
is a conversation in turns, see `runtimes.conversation`, and commits at both ends when it is over.

Nobody waits while it holds its own state: who is busy refuses, and who is refused lets go, sleeps
for a random while and asks the same partner again, as another one would shift meetings to whoever
idles. So neither two that ask each other nor many in a cycle come to a deadlock.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes.conversation import Half
from runtimes.desk import Desk, Reply, Turn, advanced, on_host
from runtimes.meeting import Programs
from stragglers.pair_log import Entry, Meeting

BACK_OFF = 2e-3  # s, the longest first sleep of who is refused
DOUBLINGS = 4  # of it
LOOK = 0.1  # s between two looks at whether to stop


class Place(NamedTuple):
    """All that changes of a node, at one moment between its meetings."""

    params: Any
    work: Any  # state of the method's local steps
    exchange: Any  # state of its exchange
    rule: Any  # state of the waiting rule that the node keeps by itself; ()
    counter: np.ndarray  # [] int64, of its next mini-batch
    meetings: np.ndarray  # [] int64


class Step(NamedTuple):
    """What a waiting rule has a node do once its local steps are done."""

    partner: int | None  # None: nobody
    asks: bool  # or waits to be asked
    batches: int  # mini-batches to come after it
    rule: Any = ()  # as in `Place`


class Traffic(NamedTuple):
    """What a node has counted."""

    asked: int  # meetings
    refused: int  # attempts
    sent_bytes: int


class Stopped(Exception):
    """The node is to stop."""


class _Brought(NamedTuple):
    """Local steps that are done."""

    contribution: Any
    work: Any
    entry: Entry


class Node:
    """One worker; `run` trains in the calling thread, everything else may come from others.

    programs: compiled ones; place, batches: where it begins, and its first mini-batches; sampler:
    as in `runtimes.simulate`; arrive: (state of the rule, seconds) -> Step, which may wait; turn:
    (partner, Turn) -> Reply, or None if it is refused; report: takes every Meeting of the node,
    also those that it was asked for. delay: seconds of a mini-batch as a seeded process, or None;
    communication: s before a meeting; now: the clock [s].
    """

    def __init__(
        self,
        me: int,
        workers: int,
        programs: Programs,
        place: Place,
        batches: int,
        sampler,
        *,
        arrive: Callable[[Any, float], Step],
        turn: Callable[[int, Turn], Reply | None],
        report: Callable[[Meeting], None],
        delay=None,
        communication: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ):
        self.me, self._workers, self._programs, self._place = me, workers, programs, place
        self._batches, self._sampler, self._now = batches, sampler, now
        self._arrive, self._turn, self._report = arrive, turn, report
        self._delay, self._communication = delay, communication
        self._lock = threading.Lock()  # who holds it may change the place
        self._desk = Desk(workers, self._lock, self._answer, self._answered, now)
        self._stopping, self._met = threading.Event(), threading.Event()
        self._brought: _Brought | None = None
        self._attempts, self._traffic, self._counting = 0, Traffic(0, 0, 0), threading.Lock()
        self._chance = np.random.default_rng(me)

    def run(self) -> None:
        """Make local steps and meet, until `stop`."""
        try:
            while not self._stopping.is_set():
                self._brought = brought = self._local_steps()
                step = self._arrive(self._place.rule, self._now())
                if step.partner is None:
                    self._alone(brought, step)
                elif step.asks:
                    self._sleep(self._communication)
                    self._ask(brought, step)
                else:
                    while not self._met.wait(LOOK):
                        self._go_on()
                    self._met.clear()
                self._batches = step.batches
        except Stopped:
            pass

    def stop(self) -> None:
        """Let `run` return; a meeting under way comes to its end."""
        self._stopping.set()

    def freeze(self) -> Place:
        """The place, which stays as it is until `thaw`: no meeting begins or ends meanwhile."""
        while not self._lock.acquire(timeout=LOOK):
            self._desk.give_up_the_silent()
        return self._place

    def thaw(self) -> None:
        """Meet again after `freeze`."""
        self._lock.release()

    def traffic(self) -> Traffic:
        """What the node has counted so far."""
        return self._traffic

    def answer(self, turn: Turn) -> Reply | None:
        """The reply to a turn of an asker; None refuses it, as in `runtimes.desk`."""
        reply = self._desk.answer(turn)
        if reply is not None:
            self._count(sent_bytes=_bytes(reply.said))
        return reply

    def _local_steps(self) -> _Brought:
        place, batches, start = self._place, np.int32(self._batches), self._now()
        counter = int(place.counter)
        counters = counter + np.arange(self._programs.mini_batches)
        samples = self._workers * counter * self._sampler.batch_size
        contribution, work = jax.block_until_ready(
            self._programs.contribute(
                place.params,
                place.work,
                self._sampler.indices(np.int64(self.me), counters),
                batches,
                np.float32(samples),
                np.int32(self.me),
            )
        )
        if self._delay is not None:
            ends = start
            for count in range(counter, counter + int(batches)):
                ends += float(self._delay.duration(self.me, ends, count))
            self._sleep(ends - self._now())
        entry = Entry(self.me, -1, int(batches), counter, samples, start, self._now() - start)
        return _Brought(contribution, work, entry)

    def _alone(self, brought: _Brought, step: Step) -> None:
        self._hold()
        try:
            place, asked = self._place, self._now()
            params, exchange = jax.block_until_ready(
                self._programs.alone(*self._arguments(brought, place))
            )
            met = Meeting((self._entry(brought, place),), asked, self._now())
            self._commit(met, params, exchange, brought, step.rule)
        finally:
            self._lock.release()

    def _ask(self, brought: _Brought, step: Step) -> None:
        """Meet the partner, asking until it has time."""
        for refused in itertools.count():
            self._hold()
            try:
                met = self._attempt(brought, step)
            finally:
                self._lock.release()
            if met:
                self._count(asked=1)
                return
            self._count(refused=1)
            longest = BACK_OFF * 2.0 ** min(refused, DOUBLINGS)
            self._sleep(float(self._chance.uniform(0, longest)))
            self._go_on()

    def _attempt(self, brought: _Brought, step: Step) -> bool:
        place, asked = self._place, self._now()
        entry = self._entry(brought, place)
        half = self._programs.ask.begin(*self._arguments(brought, place))
        said, number = on_host(next(half)), 0
        self._attempts += 1
        while True:
            turn = Turn(self.me, self._attempts, number, said, entry)
            reply = self._turn(step.partner, turn)
            if reply is None:
                return False
            self._count(sent_bytes=_bytes(said))
            theirs, number = reply.entry, number + 1
            said, result = advanced(half, reply.said)
            if said is None:
                met = Meeting((entry, theirs), asked, self._now())
                self._commit(met, *result, brought, step.rule)
                return True

    def _answer(self) -> tuple[Half, Entry]:
        """Begin the half of a meeting that somebody has asked for."""
        place = self._place
        if self._programs.goes_on:
            entry = Entry(self.me, int(place.meetings), 0, 0, 0, self._now(), 0.0)
            half = self._programs.answer.begin(place.exchange, place.params, np.int32(self.me))
            return half, entry
        half = self._programs.answer.begin(*self._arguments(self._brought, place))
        return half, self._entry(self._brought, place)

    def _answered(self, met: Meeting, result: Any) -> None:
        """Commit a meeting that somebody has asked for."""
        if self._programs.goes_on:
            place = self._place
            self._place = place._replace(exchange=result, meetings=place.meetings + 1)
            self._report(met)
        else:
            self._commit(met, *result, self._brought, self._place.rule)
            self._met.set()

    def _commit(self, met: Meeting, params, exchange, brought: _Brought, rule: Any) -> None:
        place, after = self._place, brought.entry.first + brought.entry.batches
        self._place = Place(
            params, brought.work, exchange, rule, np.int64(after), place.meetings + 1
        )
        self._report(met)

    def _arguments(self, brought: _Brought, place: Place) -> tuple:
        batches = np.int32(brought.entry.batches)
        return brought.contribution, place.exchange, place.params, batches, np.int32(self.me)

    def _entry(self, brought: _Brought, place: Place) -> Entry:
        return brought.entry._replace(count=int(place.meetings))

    def _hold(self) -> None:
        while not self._lock.acquire(timeout=LOOK):
            self._desk.give_up_the_silent()
            self._go_on()

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._stopping.wait(seconds)
        self._go_on()

    def _go_on(self) -> None:
        if self._desk.failure is not None:
            raise self._desk.failure
        if self._stopping.is_set():
            raise Stopped

    def _count(self, **more: int) -> None:
        with self._counting:
            counted = self._traffic._asdict()
            self._traffic = Traffic(**counted | {n: counted[n] + m for n, m in more.items()})


def _bytes(said: Sequence[np.ndarray]) -> int:
    return sum(value.nbytes for value in said)
