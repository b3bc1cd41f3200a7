"""Nodes at work: their processes, the log of their meetings, and what happens when one has gone.

A node that has gone is `missing` until its new beginning stands in the log, and then `away` until
a process has compiled; the others go on meanwhile, and so do evaluations, which know both.
"""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtimes.base import WorkersLost
from runtimes.crew import ASIDE, Crew, News, reason
from runtimes.ledger import NOTHING, Counted, Ledger
from runtimes.local_steps import Holding
from runtimes.matchmaking import Matchmaker
from runtimes.nodes import Step
from runtimes.overseer import DEATHS, MISSED, STARTING, Options
from runtimes.peers import (
    MEET,
    NEWS,
    Arrival,
    Failure,
    Held,
    Peer,
    PeerParts,
    Report,
    begins,
    shown,
)
from runtimes.session import Session, store_bytes
from runtimes.standstill import Standstill
from stragglers.pair_log import PairLog
from stragglers.schedule import Event, Schedule

COPIES = 6  # of the parameters per worker, as arrays on their way
_LOST_AGAIN = f"workers have gone again and again for {STARTING:g} s"


class Cut(NamedTuple):
    """All nodes after the same rows."""

    schedule: Schedule | None  # the rows since the last cut
    held: list[Held]
    there: np.ndarray  # [workers] bool, False of those that have been away for long


class Gathering(Standstill):
    """The nodes of a run, and the log of their meetings."""

    fewest, spares = 2, True  # who is alone meets nobody

    def __init__(self, parts: PeerParts, log: PairLog, options: Options):
        super().__init__(parts.rule.workers, options, log)
        self._parts = parts
        self._matchmaker = Matchmaker(parts.rule.arrivals, self._say)
        self._heard: dict[int, float] = {}  # when a node has said something
        self._mending = concurrent.futures.ThreadPoolExecutor(1)
        self._away: dict[int, Held] = {}  # and what they begin with
        self._since: dict[int, float] = {}  # when those who are not there have gone
        self._ledger: Ledger | None = None

    def open(
        self,
        session: Session,
        recipe: Callable[[], PeerParts],
        holdings: Sequence[Holding],
        elapsed: float,
    ) -> None:
        """Start all processes and, when they have compiled, the clock at `elapsed` seconds."""
        workers, resources = self._workers, self._options.resources
        session.provide(workers, resources, store_bytes(holdings[0].params, workers, COPIES))
        import ray  # the session has set what it reads when it is loaded

        self._crew = Crew(Peer, lambda me: (recipe, me), workers, resources, (ASIDE, NEWS, MEET))
        self._ledger = Ledger(holdings, self.log.updates)
        held = [ray.put(holding) for holding in holdings]

        def start(node: int, after: Any = None) -> Any:
            return self._crew.start(node, held[node], self._batches(node, holdings[node]), after)

        first = start(0)  # the others find what it has compiled
        for node in range(1, workers):
            start(node, first)
        self._crew.wait_until_ready(STARTING, start)
        self._elapsed, self._resumed_at = elapsed, time.monotonic()
        peers = {node: self._crew.handle(node) for node in range(workers)}
        for node in range(workers):
            self._crew.call(node, "go", peers, elapsed)
            self._entered(node)
        self._thread.start()

    def close(self) -> None:
        """End the threads and all processes."""
        super().close()
        self._mending.shutdown(wait=False, cancel_futures=True)

    def cut(self) -> Cut:
        """The rows since the last cut, and what all nodes hold after exactly these.

        Of who has no process yet it is what it will begin with.
        """
        import ray

        while True:
            with self.turn:
                self._wait(lambda: not self._missing, STARTING, _LOST_AGAIN)
            if self.error is not None:
                raise self.error
            with self._freezing, contextlib.suppress(ray.exceptions.RayActorError):
                with self.turn:
                    held, working = dict(self._away), sorted(self._alive)
                if len(held) + len(working) < self._workers:
                    continue  # somebody has died meanwhile
                with self._frozen(working) as counts:
                    if counts is None:
                        continue
                    with self.turn:
                        if not self._catch_up(counts, ()):
                            continue
                        lines, rows = self.log.lines, self.log.updates
                held |= zip(working, self._asked(working, "held"), strict=True)
                found = [held[node] for node in range(self._workers)]
                with self.turn:
                    self._ledger.take(found, rows)
                    return Cut(self.log.take(lines), found, self._there())

    def counted(self, held: Sequence[Held]) -> Counted:
        """What has been counted by the nodes that there are, and by those that have gone."""
        return self._ledger.counted(held, self.deaths)

    def _there(self) -> np.ndarray:
        """Who works or may soon, [workers] bool."""
        now = time.monotonic()
        away = {node for node, since in self._since.items() if now - since > MISSED}
        away |= {node for node, died in self._died.items() if died > DEATHS}
        return np.array([node not in away for node in range(self._workers)])

    def _react(self, news: News) -> None:
        node = news.member
        if news.kind == "lost":
            self._lost(node)
        elif news.kind == "ready":
            self._mending.submit(self._try, self._return, node)
        elif news.kind == "failed":
            raise RuntimeError(f"worker {node} fails with {reason(news.value)}")
        elif news.tag == NEWS:
            self._reported(node, news.value)

    def _reported(self, node: int, report: Report) -> None:
        self._heard[node] = time.monotonic()
        if report.computing > self._pulse.patience:
            self._crew.kill(node)
            return
        self._crew.call(node, "news", tag=NEWS, aside=NEWS)
        with self.turn:
            for item in report.items:
                if isinstance(item, Failure):
                    raise RuntimeError(
                        f"{item.reason} after {self.log.updates} meetings; correct the task or the "
                        "learning rate, or set config.actors.bad_contribution='drop'"
                    )
                if isinstance(item, Arrival):
                    self._matchmaker.arrived(item.worker, item.seconds)
                    continue
                self._died[node] = 0
                self._pulse.delivered(item.ends[0].busy)
                self.log.add(item)
            self.turn.notify_all()

    def _say(self, node: int, step: Step) -> None:
        self._crew.call(node, "do", step)

    def _lost(self, node: int) -> None:
        again = self._died_again(node, "a meeting")
        with self.turn:
            self._missing.add(node)
            self._away.pop(node, None)
            self._since.setdefault(node, time.monotonic())
            self.log.happened(Event(self.now(), node, "lost"))
        self._mending.submit(self._try, self._mend, node, again)

    def _mend(self, node: int, again: bool) -> None:
        """Find out with what a node begins anew; again: in a process, which is started."""
        import ray

        while not self._closing:
            with self._freezing, contextlib.suppress(ray.exceptions.RayActorError):
                with self.turn:
                    others, gone = sorted(self._alive), sorted(self._missing)
                if not (others or self._away or self._options.own_model):
                    raise WorkersLost("all workers have gone at once; give the same command again")
                reports = [met for one in gone for met in self._asked(others, "absent", one)]
                with self._frozen(others) as counts:
                    if counts is None:
                        continue
                    holding = self._found(node, others, gone, reports, counts)
                if holding is not None:
                    break
        if again and not self._closing:
            self._crew.start(node, ray.put(holding), self._batches(node, holding))

    def _found(self, node: int, others, gone, reports, counts) -> Holding | None:
        """What a node that has gone is to begin with, between the rows so far and those to come.

        None if somebody else than `gone` is lost meanwhile.
        """
        if self._options.own_model:
            source, version, model = node, self._ledger.update, self._ledger.model(node)
        else:
            source, version = self._nearest(node, others or sorted(self._away)), None
            model = self._shown_by(source)
        with self.turn:
            for met in (met for report in reports for met in report):
                self.log.add(met)
            if not self._catch_up(counts, gone):
                return None
            self.log.restored(node, source, self.now(), version)
            known = self.log.known(node)
        self._ledger.replace(node, model)
        self._matchmaker.anew(node, self.now())
        holding = begins(self._parts, node, model, **known)
        with self.turn:
            self._missing.discard(node)
            self._away[node] = Held(holding, NOTHING.traffic)
            self.turn.notify_all()
        return holding

    def _nearest(self, node: int, others: Sequence[int]) -> int:
        """A neighbour in the method's graph, or anybody."""
        graph = self._parts.worker.algorithm.graph
        near = [other for other in others if graph is None or other in graph[node]]
        return (near or others)[0]

    def _shown_by(self, node: int) -> Any:
        """The model that a node shows to others."""
        if node in self._away:
            return shown(self._parts, self._away[node].holding)
        (model,) = self._asked([node], "public")
        return model

    def _return(self, node: int) -> None:
        """Let a node that is ready again work, and the others meet it."""
        with self._freezing, self.turn:
            if node in self._missing:
                return  # it has died once more
            for other in self._alive:
                self._crew.call(other, "present", node, self._crew.handle(node))
            # Who is still to return itself will be presented to this one then.
            peers = {other: self._crew.handle(other) for other in self._alive}
            self._crew.call(node, "go", peers, self.now())
            del self._away[node], self._since[node]
            self._entered(node)

    def _entered(self, node: int) -> None:
        self._heard[node] = time.monotonic()
        self._crew.call(node, "news", tag=NEWS, aside=NEWS)
        with self.turn:
            self._alive.add(node)
            self.turn.notify_all()

    def _batches(self, node: int, holding: Holding) -> int:
        """Mini-batches of the local steps that a node does next."""
        arrivals = self._parts.rule.arrivals
        if arrivals.apart:
            return arrivals.mini_batches(holding.rule, node)
        return self._matchmaker.batches(node)

    def _look(self) -> None:
        now = time.monotonic()
        for node in list(self._alive):
            if now - self._heard[node] > self._pulse.patience:
                self._heard[node] = now
                self._crew.kill(node)
