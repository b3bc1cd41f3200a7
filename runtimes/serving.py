"""A parameter server at work: its thread, its clock and the processes of its workers."""

import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes.base import WorkersLost
from runtimes.crew import Crew, News, Resources, Session, reason
from runtimes.free_worker import Delivery, FreeWorker, Parts
from runtimes.parameter_server import Begin, Command, ParameterServer
from runtimes.pulse import Pulse

STARTING = 300.0  # s that the processes may take to start
MISSED = 60.0  # s with too few workers after which a run ends
DEATHS = 5  # of one worker in a row, without anything delivered, that end a run
LOOK = 0.5  # s between two looks at who is silent


class Options(NamedTuple):
    """How a run treats its processes."""

    resources: Resources = Resources()
    least_workers: int = 1  # with fewer for long, the run ends
    drops: bool = False  # a contribution that fails or is not finite is left out; else the run ends


class Serving:
    """The server of a run from when its processes start until they are ended.

    `turn` guards the server; it is notified whenever something has happened. `limit` is the update
    at which the server stops to react. What goes wrong in the thread stands in `error`.
    """

    def __init__(self, server: ParameterServer, params: Any, options: Options):
        self.turn = threading.Condition()
        self.limit, self.error = 0.0, None
        self.sent = self.deaths = 0  # bytes of all deliveries; processes that have died
        self._server, self._params, self._options = server, params, options
        self._pulse, self._closing = Pulse(), False
        self._alive: set[int] = set()
        self._died = dict.fromkeys(range(server.workers), 0)
        self._missed_since: float | None = None
        self._published: dict[int, Any] = {}  # version -> reference to its parameters
        self._sender = concurrent.futures.ThreadPoolExecutor(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._elapsed, self._resumed_at = 0.0, None
        self._crew: Crew | None = None

    def open(
        self,
        session: Session,
        recipe: Callable[[], Parts],
        planned: int,
        elapsed: float,
        states: Mapping[int, tuple[int, Any]],
    ) -> None:
        """Start all processes and, when they have compiled, the clock at `elapsed` seconds.

        planned: contributions of an update. states: worker -> (order, state of local steps after
        it), where a run is resumed.
        """
        workers, resources = self._server.workers, self._options.resources
        size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self._params))
        session.provide(workers, resources, int(1.2 * size * (3 * workers + 2)) + 2**24)
        self._elapsed = elapsed
        self._crew = Crew(FreeWorker, lambda me: (recipe, me), workers, resources)
        first = _put(self._server.points[self._server.update])
        for who in range(workers):
            self._crew.start(who, first)
        self._server.compile(planned)
        self._crew.wait_until_ready(STARTING)
        self._alive.update(range(workers))
        for who, state in states.items():
            self._crew.call(who, "restore", *state)
        self._resumed_at = time.monotonic()
        for command in list(self._server.begin(self.now())):
            self._send(command)
        self._thread.start()

    def close(self) -> None:
        """End the thread and all processes."""
        with self.turn:
            self._closing = True
            self.turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(10)
        self._sender.shutdown(cancel_futures=True)
        if self._crew is not None:
            self._crew.close()

    def now(self) -> float:
        """Seconds of the run."""
        running = 0.0 if self._resumed_at is None else time.monotonic() - self._resumed_at
        return self._elapsed + running

    def pids(self) -> dict[int, int]:
        """The processes of the workers that are ready."""
        return {who: self._crew.place(who).pid for who in sorted(self._alive)}

    def state_of(self, who: int, number: int) -> Any:
        """A reference to the worker's state of local steps after an order."""
        return self._crew.call(who, "state", number, aside=True)

    def _serve(self) -> None:
        """React to news until the run is closed; in a thread of its own."""
        looked = time.monotonic()
        while not self._closing and self.error is None:
            with contextlib.suppress(queue.Empty):
                news = self._crew.news.get(timeout=LOOK / 2)
                with self.turn:
                    self.turn.wait_for(lambda: self._server.update < self.limit or self._closing)
                    self._try(self._react, news)
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                with self.turn:
                    self._try(self._look)

    def _try(self, what: Callable, *arguments: Any) -> None:
        try:
            what(*arguments)
        except BaseException as error:  # it belongs to whoever waits for the run
            self.error = error
        self.turn.notify_all()

    def _react(self, news: News) -> None:
        who, now = news.member, self.now()
        commands = []
        if news.kind == "lost":
            self._lost(who, now)
        elif news.kind == "ready":
            self._alive.add(who)
            commands = self._server.returned(who, now)
        elif news.tag == "order" and news.kind == "failed":
            commands = self._bad(who, f"fails with {reason(news.value)}", now)
        elif news.tag == "order":
            commands = self._delivered(who, news.value, now)
        elif news.tag == "pulse" and news.kind == "answer":
            if not self._pulse.answered(who, news.value, now):
                self._crew.kill(who)
        elif news.kind == "failed" and news.tag is None:
            self._crew.kill(who)  # it cannot do what every worker has to
        for command in commands:
            self._send(command)

    def _delivered(self, who: int, delivery: Delivery, now: float) -> list[Command]:
        order = self._server.waits_for(who)
        stopped = delivery.contribution is None
        if stopped or order is None or order.number != delivery.number:
            return []
        if not delivery.finite:
            return self._bad(who, "is not finite", now)
        if _shapes(delivery.contribution) != _shapes(self._server.expected):
            return self._bad(who, "has other shapes than it should", now)
        self._died[who] = 0
        self._pulse.delivered(now - order.seconds)
        self.sent += sum(leaf.nbytes for leaf in jax.tree.leaves(delivery.contribution))
        return self._server.arrived(who, delivery, now)

    def _bad(self, who: int, what: str, now: float) -> list[Command]:
        """A contribution that cannot be used."""
        if self._server.waits_for(who) is None:
            return []
        if self._options.drops:
            return self._server.drop(who, now)
        raise RuntimeError(
            f"the contribution of worker {who} at update {self._server.update} {what}; correct the "
            "task or the learning rate, or set config.actors.bad_contribution='drop'"
        )

    def _lost(self, who: int, now: float) -> None:
        """Replace a process that has gone."""
        self._alive.discard(who)
        self._pulse.forget(who)
        self.deaths += 1
        self._died[who] += 1
        if self._died[who] > DEATHS:
            raise WorkersLost(
                f"the process of worker {who} has died {DEATHS} times in a row without delivering "
                "anything; see its memory, then give the same command again"
            )
        self._server.lost(who, now)
        self._crew.start(who, _put(self._server.points[self._server.update]))

    def _look(self) -> None:
        """Replace who does not answer any more, and end the run with too few workers."""
        now = self.now()
        orders = {who: self._server.waits_for(who) for who in self._alive}
        since = {who: order.seconds for who, order in orders.items() if order is not None}
        late, silent = self._pulse.look(since, now)
        for who in silent:
            self._crew.kill(who)
        for who in late:
            self._crew.call(who, "computing", tag="pulse", aside=True)
        if len(self._alive) >= self._options.least_workers:
            self._missed_since = None
        elif self._missed_since is None:
            self._missed_since = now
        elif now - self._missed_since > MISSED:
            raise WorkersLost(
                f"only {len(self._alive)} of {self._server.workers} workers are left and no more "
                f"have come for {MISSED:g} s; give the same command again where there are "
                f"{self._options.least_workers} or more"
            )

    def _send(self, command: Command) -> None:
        """Hand a command to the thread that talks to the workers."""
        if isinstance(command, Begin):
            # Held until they are published, whatever the server forgets in the meantime.
            params = self._server.points[command.order.version]
            self._sender.submit(self._begin, command, params)
        else:
            stop = (command.worker, "interrupt", command.number)
            self._sender.submit(self._crew.call, *stop, aside=True)

    def _begin(self, command: Begin, params: Any) -> None:
        """Publish the parameters of a version once, for whoever is sent to work at them."""
        version = command.order.version
        if version not in self._published:
            self._published[version] = _put(params)
        reference = self._published[version]
        with contextlib.suppress(Exception):  # of a process that has gone, of which there is news
            self._crew.call(command.worker, "step", command.order, reference, tag="order")
        used = {version, *self._server.points}
        for old in self._published.keys() - used:
            del self._published[old]


def _put(params: Any) -> Any:
    import ray

    return ray.put(jax.tree.map(np.asarray, params))


def _shapes(tree: Any) -> list:
    return [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
