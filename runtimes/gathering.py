"""Nodes at work: their processes, the log of their meetings, and what happens when one has gone."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes.base import WorkersLost
from runtimes.crew import ASIDE, Crew, News, reason
from runtimes.local_steps import Holding
from runtimes.matchmaking import Matchmaker
from runtimes.nodes import Step, Traffic
from runtimes.overseer import LOOK, STARTING, Options, Overseer
from runtimes.peers import MEET, NEWS, Arrival, Failure, Held, Peer, PeerParts, Report, begins
from runtimes.session import Session
from stragglers.pair_log import PairLog
from stragglers.schedule import Event, Schedule

CATCHING_UP = 30.0  # s that the log may be behind nodes that have stopped to meet
_NOBODY_CAME = f"a worker has gone, and no process has taken its place within {STARTING:g} s"
_FORGOTTEN = "several workers have gone at once, with what they had said to each other"


class Counted(NamedTuple):
    """What has been counted since a run has begun."""

    traffic: Traffic  # of all nodes
    deaths: int  # of processes
    moved: float  # how far restored nodes have moved the sum of the models, over its length

    def and_then(self, later: "Counted") -> "Counted":
        """Both after each other."""
        return Counted(_both(self.traffic, later.traffic), self.deaths + later.deaths,
                       self.moved + later.moved)  # fmt: skip


NOTHING = Counted(Traffic(0, 0, 0, 0), 0, 0.0)


class Gathering(Overseer):
    """The nodes of a run, and the log of their meetings."""

    def __init__(self, parts: PeerParts, log: PairLog, options: Options):
        super().__init__(parts.rule.workers, options)
        self.log = log
        self._parts = parts
        self._matchmaker = Matchmaker(parts.rule.arrivals, self._say)
        self._freezing = threading.Lock()  # of all nodes together: for a cut, or to mend
        self._heard: dict[int, float] = {}  # when a node has said something
        self._mending = concurrent.futures.ThreadPoolExecutor(1)
        self._last: list[Held] = []  # what each node held when all were frozen last
        self._gone, self._moved = NOTHING.traffic, 0.0  # of processes that have gone

    def open(
        self,
        session: Session,
        recipe: Callable[[], PeerParts],
        holdings: Sequence[Holding],
        elapsed: float,
    ) -> None:
        """Start all processes and, when they have compiled, the clock at `elapsed` seconds."""
        workers, resources = self._workers, self._options.resources
        size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(holdings[0].params))
        session.provide(workers, resources, int(1.2 * size * (6 * workers + 2)) + 2**24)
        import ray  # the session has set what it reads when it is loaded

        self._crew = Crew(Peer, lambda me: (recipe, me), workers, resources, (ASIDE, NEWS, MEET))
        self._last = [Held(holding, NOTHING.traffic) for holding in holdings]
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

    def cut(self) -> tuple[Schedule | None, list[Held]]:
        """The rows since the last cut, and what all nodes hold after exactly these."""
        import ray

        while True:
            with self.turn:
                self._wait(lambda: len(self._alive) == self._workers, STARTING, _NOBODY_CAME)
            with self._freezing, self._frozen(range(self._workers)) as counts:
                if counts is None:
                    continue  # somebody has died meanwhile
                with self.turn:
                    self._wait(lambda: self._caught_up(counts), CATCHING_UP, _FORGOTTEN)
                    lines = self.log.lines
            with contextlib.suppress(ray.exceptions.RayActorError):
                held = self._asked(range(self._workers), "held")
                if all(one is not None for one in held):  # nobody has been replaced since
                    self._last = list(held)
                    with self.turn:
                        return self.log.take(lines), held

    def counted(self, held: Sequence[Held]) -> Counted:
        """What has been counted by the nodes that there are, and by those that have gone.

        Of the latter until all were frozen last; the models that restored nodes have replaced are
        of then as well.
        """
        traffic = self._gone
        for node in held:
            traffic = _both(traffic, node.traffic)
        return Counted(traffic, self.deaths, self._moved)

    def _asked(self, nodes: Sequence[int], what: str, *arguments: Any) -> list:
        import ray

        return ray.get([self._crew.call(node, what, *arguments) for node in nodes])

    @contextlib.contextmanager
    def _frozen(self, nodes: Sequence[int]):
        """The meetings of these nodes, which have none meanwhile; None if one of them is gone."""
        import ray

        asked = {node: self._crew.call(node, "freeze") for node in nodes}
        counts = {}
        for node, reference in asked.items():
            with contextlib.suppress(ray.exceptions.RayActorError):
                counts[node] = ray.get(reference)
        try:
            yield counts if len(counts) == len(asked) else None
        finally:
            for node in counts:
                self._crew.call(node, "thaw")

    def _caught_up(self, counts: Mapping[int, int]) -> bool:
        known = self.log.counts()
        return all(known[node] == count for node, count in counts.items())

    def _wait(self, until: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Wait under `turn`, or raise what has gone wrong meanwhile."""
        end = time.monotonic() + seconds
        while not until():
            if self.error is not None:
                raise self.error
            if time.monotonic() > end:
                raise WorkersLost(f"{otherwise}; give the same command again to go on")
            self.turn.wait(LOOK)

    def _react(self, news: News) -> None:
        node = news.member
        if news.kind == "lost":
            self._lost(node)
        elif news.kind == "ready":
            self._returned(node)
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
        self._died_again(node, "a meeting")
        with self.turn:
            self.log.happened(Event(self.now(), node, "lost"))
        self._mending.submit(self._try, self._mend, node)

    def _mend(self, node: int) -> None:
        """Begin the process of a node anew, from what a neighbour would show others."""
        import ray

        while not self._closing:
            others = sorted(self._alive)
            if not others:
                raise WorkersLost("all workers have gone at once; give the same command again")
            with self._freezing, contextlib.suppress(ray.exceptions.RayActorError):
                reports = self._asked(others, "absent", node)
                with self._frozen(others) as counts:
                    if counts is None:
                        continue
                    holding = self._found(node, others, reports, counts)
                break
        self._crew.start(node, ray.put(holding), self._batches(node, holding))

    def _found(self, node: int, others: Sequence[int], reports, counts) -> Holding:
        """What a node that has gone is to begin with, between the rows so far and those to come."""
        graph = self._parts.worker.algorithm.graph
        near = [o for o in others if graph is None or o in graph[node]]
        source = (near or others)[0]
        (public,) = self._asked([source], "public")
        with self.turn:
            for met in (met for report in reports for met in report):
                self.log.add(met)
            self._wait(lambda: self._caught_up(counts), CATCHING_UP, _FORGOTTEN)
            self.log.restored(node, source, self.now())
            known = self.log.known(node)
        self._matchmaker.anew(node)
        last = self._last[node]
        models = [held.holding.params for held in self._last]
        difference = jax.tree.map(np.subtract, public, last.holding.params)
        self._moved += _length(difference) / _length(
            jax.tree.map(lambda *leaves: sum(leaves), *models)
        )
        self._gone = _both(self._gone, last.traffic)
        self._last[node] = Held(last.holding._replace(params=public), NOTHING.traffic)
        return begins(self._parts, node, public, **known)

    def _returned(self, node: int) -> None:
        """Let a node that is ready again work, and the others meet it."""
        for other in self._alive:
            self._crew.call(other, "present", node, self._crew.handle(node))
        # Who is still to return itself will be presented to this one then.
        peers = {other: self._crew.handle(other) for other in self._alive}
        self._crew.call(node, "go", peers, self.now())
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


def _both(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(*map(sum, zip(one, other, strict=True)))


def _length(model: Any) -> float:
    return float(np.sqrt(sum(np.vdot(leaf, leaf) for leaf in jax.tree.leaves(model))))
