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
from runtimes.local_steps import Brought, Holding, LocalSteps
from runtimes.meeting import Programs
from stragglers.pair_log import Entry, Meeting

BACK_OFF = 2e-3  # s, the longest first sleep of who is refused
DOUBLINGS = 4  # of it
LOOK = 0.1  # s between two looks at whether to stop


class Step(NamedTuple):
    """What a waiting rule has a node do once its local steps are done."""

    partner: int | None  # None: nobody
    asks: bool  # or waits to be asked
    batches: int  # mini-batches to come after it
    rule: Any = ()  # as in `Holding`


class Traffic(NamedTuple):
    """What a node has counted."""

    asked: int  # meetings
    refused: int  # attempts
    sent_bytes: int
    dropped: int  # local steps whose contribution was not finite


class Stopped(Exception):
    """The node is to stop."""


class Node:
    """One worker; `run` trains in the calling thread, everything else may come from others.

    programs: compiled ones; holding, batches: where it begins, and its first mini-batches; sampler:
    as in `runtimes.simulate`; arrive: (state of the rule, seconds) -> Step, which may wait; turn:
    (partner, Turn) -> Reply, or None if it is refused; report: takes every Meeting of the node,
    also those that it was asked for. delay: seconds of a mini-batch as a seeded process, or None;
    communication: s before a meeting; drops: leave out mini-batches whose contribution is not
    finite, which else raises FloatingPointError in `run`; now: the clock [s].
    """

    def __init__(
        self,
        me: int,
        workers: int,
        programs: Programs,
        holding: Holding,
        batches: int,
        sampler,
        *,
        arrive: Callable[[Any, float], Step],
        turn: Callable[[int, Turn], Reply | None],
        report: Callable[[Meeting], None],
        delay=None,
        communication: float = 0.0,
        drops: bool = False,
        now: Callable[[], float] = time.monotonic,
    ):
        self.me, self._programs, self._holding = me, programs, holding
        self._batches, self._now = batches, now
        self.steps = LocalSteps(me, workers, programs, sampler, delay, self._sleep, now)
        self._arrive, self._turn, self._report = arrive, turn, report
        self._communication, self._drops = communication, drops
        self._lock = threading.Lock()  # who holds it may change the holding
        self._desk = Desk(workers, self._lock, self._answer, self._answered, self._send, now)
        self._stopping, self._met = threading.Event(), threading.Event()
        self._brought: Brought | None = None  # what a partner that asks would get
        self._absent: set[int] = set()
        self._unheard: tuple[Meeting, ...] = ()  # alone, since it has last met somebody
        self._attempts, self._traffic, self._counting = 0, Traffic(0, 0, 0, 0), threading.Lock()
        self._chance = np.random.default_rng(me)

    def run(self) -> None:
        """Make local steps and meet, until `stop`."""
        try:
            while not self._stopping.is_set():
                brought = self.steps.make(self._holding, self._batches)
                if not self._usable(brought):
                    continue
                self._brought, rule, met = brought, self._holding.rule, False
                while not met:  # but with who is there
                    step = self._arrive(rule, self._now())
                    rule, met = step.rule, self._meet(brought, step)
                self._batches, self._brought = step.batches, None
        except Stopped:
            pass

    @property
    def stopping(self) -> bool:
        """Whether `run` is about to return."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Let `run` return; a meeting under way comes to its end."""
        self._stopping.set()

    def freeze(self) -> Holding:
        """The holding, which stays as it is until `thaw`: no meeting begins or ends meanwhile."""
        while not self._lock.acquire(timeout=LOOK):
            self._desk.give_up_the_silent()
        return self._holding

    def thaw(self) -> None:
        """Meet again after `freeze`."""
        self._lock.release()

    def absent(self, other: int) -> None:
        """Expect nothing more of a node that has gone, until it is `present` again."""
        self._desk.close_to(other)
        self._absent.add(other)

    def present(self, other: int) -> None:
        """Expect the node to answer, as one that begins to count its attempts anew."""
        self._desk.forget(other)
        self._absent.discard(other)

    def traffic(self) -> Traffic:
        """What the node has counted so far."""
        return self._traffic

    def answer(self, turn: Turn) -> Reply | None:
        """The reply to a turn of an asker; None refuses it, as in `runtimes.desk`."""
        return self._desk.answer(turn)

    def _usable(self, brought: Brought) -> bool:
        """Whether a contribution is finite; one that is not is left out, or ends the node."""
        if brought.finite:
            return True
        if not self._drops:
            raise FloatingPointError(f"the contribution of worker {self.me} is not finite")
        self._count(dropped=1)
        self._hold()
        after = np.int64(brought.entry.first + brought.entry.batches)
        self._holding = self._holding._replace(counter=after)
        self._lock.release()
        return False

    def _alone(self, brought: Brought, step: Step) -> None:
        self._hold()
        try:
            holding, asked = self._holding, self._now()
            params, exchange = jax.block_until_ready(
                self._programs.alone(*self._arguments(brought, holding))
            )
            met = Meeting(
                (brought.entry._replace(count=int(holding.meetings)),), asked, self._now()
            )
            self._commit(met, params, exchange, brought, step.rule)
            self._unheard += (met,)
        finally:
            self._lock.release()

    def _meet(self, brought: Brought, step: Step) -> bool:
        """Do what the rule says; False if the partner has gone."""
        if step.partner is None:
            self._alone(brought, step)
            return True
        if step.asks:
            self._sleep(self._communication)
        for refused in itertools.count():
            gone = step.partner in self._absent
            if step.asks and not gone and self._asked(brought, step):
                return True
            if not step.asks and self._met.wait(LOOK):
                self._met.clear()
                return True
            self._go_on()
            if gone:
                self._sleep(LOOK)
                return False
            if step.asks:
                self._count(refused=1)
                longest = BACK_OFF * 2.0 ** min(refused, DOUBLINGS)
                self._sleep(float(self._chance.uniform(0, longest)))

    def _asked(self, brought: Brought, step: Step) -> bool:
        """Ask the partner to meet; False if it refuses."""
        self._hold()
        try:
            met = self._attempt(brought, step)
            if met:
                self._count(asked=1)
        finally:
            self._lock.release()
        return met

    def _attempt(self, brought: Brought, step: Step) -> bool:
        holding, asked = self._holding, self._now()
        entry = self._entry(brought, holding)
        half = self._programs.ask.begin(*self._arguments(brought, holding))
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

    def _send(self, reply: Reply) -> None:
        self._count(sent_bytes=_bytes(reply.said))

    def _answer(self) -> tuple[Half, Entry] | None:
        """Begin the half of a meeting that somebody has asked for; None before it is time."""
        holding = self._holding
        if self._programs.goes_on:
            entry = Entry(self.me, int(holding.meetings), 0, 0, 0, self._now(), 0.0, self._unheard)
            half = self._programs.answer.begin(holding.exchange, holding.params, np.int32(self.me))
            return half, entry
        if self._brought is None:
            return None
        half = self._programs.answer.begin(*self._arguments(self._brought, holding))
        return half, self._entry(self._brought, holding)

    def _answered(self, met: Meeting, result: Any) -> None:
        """Commit a meeting that somebody has asked for."""
        if self._programs.goes_on:
            holding = self._holding
            self._holding = holding._replace(exchange=result, meetings=holding.meetings + 1)
            self._unheard = ()
            self._report(met)
        else:
            self._commit(met, *result, self._brought, self._holding.rule)
            self._met.set()

    def _commit(self, met: Meeting, params, exchange, brought: Brought, rule: Any) -> None:
        holding, after = self._holding, brought.entry.first + brought.entry.batches
        self._holding = Holding(
            params, brought.work, exchange, rule, np.int64(after), holding.meetings + 1
        )
        if len(met.ends) > 1:
            self._unheard = ()
        self._report(met)

    def _arguments(self, brought: Brought, holding: Holding) -> tuple:
        batches = np.int32(brought.entry.batches)
        return brought.contribution, holding.exchange, holding.params, batches, np.int32(self.me)

    def _entry(self, brought: Brought, holding: Holding) -> Entry:
        return brought.entry._replace(count=int(holding.meetings), unheard=self._unheard)

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
