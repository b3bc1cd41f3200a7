"""A parameter server at work: what its workers deliver, and the commands that they get."""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from runtimes.crew import Crew, News, reason
from runtimes.free_worker import Delivery, FreeWorker, Parts
from runtimes.overseer import STARTING, Options, Overseer
from runtimes.parameter_server import Begin, Command, ParameterServer
from runtimes.session import Session, store_bytes

COPIES = 3  # of the parameters per worker, as arrays on their way


class Serving(Overseer):
    """The server of a run and its workers. `limit` is the update at which it stops to react."""

    def __init__(self, server: ParameterServer, params: Any, options: Options):
        super().__init__(server.workers, options)
        self.limit = 0.0
        self.sent = 0  # bytes of all deliveries
        self._server, self._params = server, params
        self._published: dict[int, Any] = {}  # version -> reference to its parameters
        self._sender = concurrent.futures.ThreadPoolExecutor(1)

    def open(
        self,
        session: Session,
        recipe: Callable[[], Parts],
        planned: Iterable[int],
        elapsed: float,
        states: Mapping[int, tuple[int, Any]],
    ) -> None:
        """Start all processes and, when they have compiled, the clock at `elapsed` seconds.

        planned: how many contributions an update may have. states: worker -> (order, state of local
        steps after it), where a run is resumed.
        """
        workers, resources = self._workers, self._options.resources
        session.provide(workers, resources, store_bytes(self._params, workers, COPIES))
        self._elapsed = elapsed
        self._crew = Crew(FreeWorker, lambda me: (recipe, me), workers, resources)
        first = _put(self._server.points[self._server.update])
        for who in range(workers):
            self._crew.start(who, first)
        self._server.compile(planned)
        self._crew.wait_until_ready(STARTING, lambda who: self._crew.start(who, first))
        self._alive.update(range(workers))
        for who, state in states.items():
            self._crew.call(who, "restore", *state)
        self._resumed_at = time.monotonic()
        for command in list(self._server.begin(self.now())):
            self._send(command)
        self._thread.start()

    def close(self) -> None:
        """End the threads and all processes."""
        super().close()
        self._sender.shutdown(cancel_futures=True)

    def state_of(self, who: int, number: int) -> Any:
        """A reference to the worker's state of local steps after an order."""
        return self._crew.call(who, "state", number, aside=True)

    def _react(self, news: News) -> None:
        self._wake()  # what was due before the news
        with self._before_the_limit():
            for command in self._heed(news):
                self._send(command)

    def _rest(self) -> float:
        with self.turn:
            return min(super()._rest(), max(0.0, self._server.due - self.now()))

    def _wake(self) -> None:
        while self._server.due <= self.now():  # nobody changes it but this thread
            with self._before_the_limit():
                for command in self._server.passed(self.now()):
                    self._send(command)

    @contextlib.contextmanager
    def _before_the_limit(self) -> Iterator[None]:
        """The turn, once there are updates to be made."""
        with self.turn:
            self.turn.wait_for(lambda: self._server.update < self.limit or self._closing)
            yield

    def _heed(self, news: News) -> list[Command]:
        who, now = news.member, self.now()
        if news.kind == "lost":
            self._lost(who, now)
        elif news.kind == "ready":
            self._alive.add(who)
            return self._server.returned(who, now)
        elif news.tag == "order" and news.kind == "failed":
            return self._bad(who, f"fails with {reason(news.value)}", now)
        elif news.tag == "order":
            return self._delivered(who, news.value, now)
        elif news.tag == "pulse" and news.kind == "answer":
            if not self._pulse.answered(who, news.value, now):
                self._crew.kill(who)
        elif news.kind == "failed" and news.tag is None:
            self._crew.kill(who)  # it cannot do what every worker has to
        return []

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
        self._pulse.forget(who)
        self._died_again(who, "delivering anything")
        self._server.lost(who, now)
        self._crew.start(who, _put(self._server.points[self._server.update]))

    def _look(self) -> None:
        with self.turn:
            now = self.now()
            orders = {who: self._server.waits_for(who) for who in self._alive}
        since = {who: order.seconds for who, order in orders.items() if order is not None}
        late, silent = self._pulse.look(since, now)
        for who in silent:
            self._crew.kill(who)
        for who in late:
            self._crew.call(who, "computing", tag="pulse", aside=True)

    def _send(self, command: Command) -> None:
        """Hand a command to the thread that talks to the workers."""
        if isinstance(command, Begin):
            # Held until they are published, whatever the server forgets in the meantime.
            params = self._server.point(command.worker, command.order)
            self._sender.submit(self._begin, command, params)
        else:
            stop = (command.worker, "interrupt", command.number)
            self._sender.submit(self._crew.call, *stop, aside=True)

    def _begin(self, command: Begin, params: Any) -> None:
        """Publish the parameters of a version once, for whoever is sent to work at them.

        A model of a worker's own is for that worker alone.
        """
        version = command.order.version
        if self._server.own_models or version not in self._published:
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
