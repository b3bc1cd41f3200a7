"""Asynchronous workers under a server: processes without common steps, wall-clock time.

The launching process is the server, and every worker is an actor with its own JAX. The server goes
on in a thread while the training loop evaluates a snapshot. Every update becomes a row of the
Schedule when it is made, and the simulator can replay these rows.

A dead or silent process is replaced, and its worker loses the state in the process. The worker then
repeats its order at the newest version. Samples are replaced by new ones only if they have costs.
"""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.base import Algorithm
from runtimes import base, packing, worker
from runtimes.asynchronous import pool
from runtimes.asynchronous.server import Begin, Command, ParameterServer, State
from runtimes.asynchronous.worker import (
    AsynchronousWorker,
    Delivery,
    Order,
    WorkerParts,
    alone,
    first_state,
)
from stragglers.rule import Rule
from stragglers.schedule import Schedule

LOOKED_AT = 64  # planned updates whose sizes are compiled before a run
MEMORY = "memory"  # tag of calls for workers' states; calls for contributions have their `Order`


class AsynchronousRun(NamedTuple):
    """Snapshot of the server."""

    state: State
    counters: dict[str, np.ndarray]
    kept: np.ndarray  # [workers] the order after which a worker's state belongs to the snapshot
    seconds: float
    update: int
    samples: int
    sent: int  # bytes of all contributions so far
    deaths: int  # of processes
    exhausted = False  # asynchronous workers never end


class AsynchronousRuntime(pool.ProcessRuntime):
    """The runtime of a method with a server and one task, see `runtimes.base.Runtime`."""

    copies, process = 3, AsynchronousWorker

    def __init__(
        self,
        parts: WorkerParts,
        recipe: Callable[[], WorkerParts],
        rule: Rule,
        options: pool.Options = pool.DEFAULTS,
    ):
        """Check the parts; recipe: builds equal parts, see `ProcessRuntime`."""
        super().__init__(rule.workers, recipe, options)
        self.parts, self._rule = parts, rule
        refuse(parts.algorithm, rule)
        _, self._planned = rule.extend(rule.init(), LOOKED_AT)

    def start(self, params: Any) -> AsynchronousRun:
        """Return a run without updates from `params`; the first `advance` starts the processes."""
        self.close()
        self._server = ParameterServer(
            self.parts.algorithm,
            self._rule.arrivals,
            params,
            workers=self._rule.workers,
            mini_batches=self.parts.mini_batches,
            batch_size=self.parts.sampler.batch_size,
            renews=self.parts.delay is not None and self.parts.delay.costs is not None,
        )
        refuse(self.parts.algorithm, self._rule, params, self.parts.mini_batches)
        self._params, self._elapsed = params, 0.0
        self._sent_before, self._deaths_before = 0, 0  # of the run that this one resumes
        self._states: dict[int, tuple[int, worker.WorkerState]] = {}
        return self._snapshot(0.0)

    def advance(
        self, run: AsynchronousRun, seconds: float, updates: float = np.inf
    ) -> tuple[AsynchronousRun, Schedule | None]:
        """Let the workers go on until the clock shows `seconds`, or for `updates` updates."""
        serving, server = self._started(), self._server
        with serving.changed:
            serving.limit = run.update + updates
            serving.changed.notify_all()
            serving.wait(seconds, lambda: server.update >= serving.limit)
            schedule = server.log.take()
            ended = schedule is not None and server.update >= serving.limit
            return self._snapshot(float(schedule.time[-1]) if ended else serving.now()), schedule

    def observe(self, run: AsynchronousRun, seconds: float, loss: float) -> AsynchronousRun:
        """Pass a training loss to a rule that follows it."""
        with contextlib.nullcontext() if self._running is None else self._running.changed:
            self._server.observe(seconds, loss)
        return run

    def models(self, run: AsynchronousRun) -> Any:
        """Return the one model of the snapshot, with a leading axis of 1."""
        return jax.tree.map(lambda a: a[None], run.state.params)

    def memory(self, run: AsynchronousRun) -> Any:
        """Return the exchange's state, with a leading axis of workers.

        Workers that encode their messages hold their own state, which is fresh after a death.
        """
        first = self._first_state()
        if not jax.tree.leaves(first.exchange):
            return run.state.memory
        kept = self._kept(run)
        states = [kept.get(who, first).exchange for who in range(self._rule.workers)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def measured(self, run: AsynchronousRun) -> dict[str, float]:
        """Return the bytes sent per worker, and the numbers of deaths and drops."""
        return {
            "bytes_per_worker": run.sent / self._rule.workers,
            "deaths": float(run.deaths),
            "dropped_contributions": float(run.counters["dropped"][0]),
        }

    def pack(self, run: AsynchronousRun) -> dict[str, np.ndarray]:
        """Return the snapshot, its history, and the states that workers keep for later orders."""
        history = self._server.log.pack(run.update)
        return (
            packing.pack(run.state)
            | packing.pack({"counters": run.counters, "worker": self._kept(run)})
            | {f"history/{name}": value for name, value in history.items()}
            | {"clock/seconds": np.array([run.seconds]), "sent": np.array([run.sent, run.deaths])}
        )

    def resume(
        self,
        run: AsynchronousRun,
        packed: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[AsynchronousRun, None]:
        """Return the packed run; contributions that were under way are computed anew."""
        state = packing.unpack(run.state, packed)
        counters, history = (_inside(f"{what}/", packed) for what in ("counters", "history"))
        self._elapsed = float(packed["clock/seconds"][0])
        self._sent_before, self._deaths_before = packed["sent"].tolist()
        first = self._first_state()
        forgotten = []
        for who, number in enumerate(counters["counted"].tolist()):
            kept = _inside(f"worker/{who}/", packed)
            if not kept and jax.tree.leaves(first):
                forgotten.append(who)
            else:
                self._states[who] = number, packing.unpack(first, kept)
        self._server.resume(state, counters, history, observed)
        for who in forgotten:
            self._server.lost(who, self._elapsed)
            self._server.returned(who, self._elapsed)
        return self._snapshot(self._elapsed), None

    def _supervisor(self, actors: pool.ActorPool) -> "Serving":
        return Serving(self._server, self._options, actors)

    def _open(self) -> None:
        planned = (self._planned.batches > 0).sum(axis=1)
        counts = range(planned.min(), self._planned.workers.shape[1] + 1)
        self._running.open(counts, self._elapsed, self._states)

    def _snapshot(self, seconds: float) -> AsynchronousRun:
        server, serving = self._server, self._running
        server.kept = server.settled()
        sent, deaths = (0, 0) if serving is None else (serving.sent, serving.deaths)
        return AsynchronousRun(
            server.state, server.counters(), server.kept.copy(), seconds, server.update,
            server.samples, self._sent_before + sent, self._deaths_before + deaths,
        )  # fmt: skip

    def _first_state(self) -> worker.WorkerState:
        """Return the initial state of a worker."""
        parts = self.parts
        state = first_state(parts.algorithm, self._params, parts.mini_batches)
        return jax.tree.map(jnp.asarray, state)

    def _kept(self, run: AsynchronousRun) -> dict[int, worker.WorkerState]:
        """Return the workers' states at the snapshot, without workers that have died since."""
        if not jax.tree.leaves(self._first_state()):
            return {}
        if self._running is None:
            return {who: state for who, (_, state) in self._states.items()}
        import ray

        asked, found = {}, {}
        for who, number in enumerate(run.kept.tolist()):
            with contextlib.suppress(ray.exceptions.RayError):
                asked[who] = self._running.state_of(who, number)
        for who, reference in asked.items():
            with contextlib.suppress(ray.exceptions.RayError):
                found[who] = ray.get(reference, timeout=60)
        return found


def misfit(
    algorithm: Algorithm, rule: Rule, params: Any = None, mini_batches: int = 1
) -> str | None:
    """Return the reason why asynchronous workers cannot follow a rule with a method, or None.

    params: as in `runtimes.base.misfit`. mini_batches: of a full contribution.
    """
    if rule.arrivals is None:
        return "its workers move freely, and the waiting rule has no form for that"
    reason = base.misfit(algorithm, rule.workers, rule.turnout, params)
    if reason is not None:
        return reason
    if rule.turnout.pairs == (algorithm.server is not None):
        return "a rule with a server is for one model, and pairs are for a model per worker"
    if algorithm.server is None and algorithm.links is not None:
        return "its matchings need all workers at once"
    if algorithm.server is None and algorithm.grad_params is not None:
        return "its gradients are taken at a point that the others' messages move"
    known = algorithm.adopt is None or params is None or not rule.turnout.early
    if not known and alone(algorithm, params, mini_batches) is None:
        return "only an update knows how workers' own models change, and a worker may go on before"
    return None


def refuse(algorithm: Algorithm, rule: Rule, params: Any = None, mini_batches: int = 1) -> None:
    """Raise ValueError if `misfit` finds a reason."""
    reason = misfit(algorithm, rule, params, mini_batches)
    if reason is not None:
        raise ValueError(f"actors: {reason}; take another waiting rule or method")


def _inside(prefix: str, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the values packed under a prefix, by the remainders of their names."""
    return {n.removeprefix(prefix): v for n, v in packed.items() if n.startswith(prefix)}


class Serving(pool.Supervisor):
    """Supervisor of a server's workers; it reacts only until the server is at update `limit`."""

    def __init__(
        self,
        server: ParameterServer,
        options: pool.Options,
        actors: pool.ActorPool | None = None,
    ):
        super().__init__(server.workers, options, actors)
        self.limit = 0.0
        self.sent = 0  # bytes of all deliveries, also of contributions that are not used
        self._server = server
        self._published: dict[int, Any] = {}  # version -> reference to its parameters
        self._sender = concurrent.futures.ThreadPoolExecutor(1)

    def open(
        self, planned: Iterable[int], elapsed: float, states: Mapping[int, tuple[int, Any]]
    ) -> None:
        """Start all processes and, once they have compiled, the clock at `elapsed` seconds.

        planned: possible numbers of contributions in an update. states: worker -> (order, state
        after this order), of a resumed run.
        """
        first = _put(self._server.points[self._server.update])
        for who in range(self._workers):
            self._pool.start(who, first)
        self._server.compile(planned)
        self._pool.wait_until_ready(pool.STARTING, lambda who: self._pool.start(who, first))
        for who in range(self._workers):
            self._alive.add(who)
            self._listen(who)
        for who, state in states.items():
            self._pool.call(who, "restore", *state)
        self._elapsed, self._resumed_at = elapsed, time.monotonic()
        for command in list(self._server.begin(self.now())):
            self._send(command)
        self._thread.start()

    def close(self) -> None:
        """End the threads and all processes."""
        super().close()
        self._sender.shutdown(cancel_futures=True)

    def state_of(self, who: int, number: int) -> Any:
        """Return a reference to the worker's state after an order."""
        return self._pool.call(who, "state", number, tag=MEMORY, aside=True)

    def _react(self, news: pool.News) -> None:
        self._wake()  # first everything that was due before the news
        with self._before_the_limit():
            for command in self._heed(news):
                self._send(command)

    def _rest(self) -> float:
        with self.changed:
            return min(super()._rest(), max(0.0, self._server.due - self.now()))

    def _wake(self) -> None:
        while self._server.due <= self.now():  # only this thread changes it
            with self._before_the_limit():
                for command in self._server.passed(self.now()):
                    self._send(command)

    @contextlib.contextmanager
    def _before_the_limit(self) -> Iterator[None]:
        """Hold `changed` in a block, which begins once further updates are allowed."""
        with self.changed:
            self.changed.wait_for(lambda: self._server.update < self.limit or self._closing)
            yield

    def _heed(self, news: pool.News) -> list[Command]:
        who, now = news.member, self.now()
        if news.kind == "lost":
            self._lost(who, now)
        elif news.kind == "ready":
            self._alive.add(who)
            self._listen(who)
            return self._server.returned(who, now)
        elif isinstance(news.tag, Order):
            if news.kind == "answer":
                self.sent += sum(a.nbytes for a in jax.tree.leaves(news.value.contribution))
            # A dead process has taken along the state that the next orders would need.
            if who not in self._alive or self._server.waits_for(who) != news.tag:
                return []
            if news.kind == "failed":
                return self._bad(who, f"fails with {pool.reason(news.value)}", now)
            return self._delivered(who, news.value, now)
        elif news.tag == pool.NEWS and news.kind == "answer":
            self._lives(who, news.value)
        elif news.kind == "failed" and news.tag in (None, pool.NEWS):
            self._pool.kill(who)  # its process fails in a call that every worker needs
        return []

    def _delivered(self, who: int, delivery: Delivery, now: float) -> list[Command]:
        if delivery.contribution is None:  # stopped
            return []
        if not delivery.finite:
            return self._bad(who, "is not finite", now)
        if _shapes(delivery.contribution) != _shapes(self._server.expected):
            return self._bad(who, "has other shapes than it should", now)
        self._died[who] = 0
        self._durations.append(now - self._server.waits_for(who).seconds)
        return self._server.arrived(who, delivery, now)

    def _bad(self, who: int, what: str, now: float) -> list[Command]:
        """Leave out a contribution that cannot be used, or raise RuntimeError for it."""
        if self._options.drops:
            return self._server.drop(who, now)
        raise RuntimeError(
            f"the contribution of worker {who} at update {self._server.update} {what}; correct the "
            "task or the learning rate, or set config.actors.bad_contribution='drop'"
        )

    def _lost(self, who: int, now: float) -> None:
        """Replace a lost process."""
        self._died_again(who, "delivering anything")
        self._server.lost(who, now)
        self._pool.start(who, _put(self._server.points[self._server.update]))

    def _send(self, command: Command) -> None:
        """Hand a command to the thread that talks to the workers."""
        if isinstance(command, Begin):
            # `params` holds the parameters until their publication; the server may forget them.
            params = self._server.point(command.worker, command.order)
            process = self._pool.handle(command.worker)  # a later one lacks the order's state
            self._sender.submit(self._try, self._begin, command, params, process)
        else:
            stop = (command.worker, "interrupt", command.number)
            self._sender.submit(self._pool.call, *stop, aside=True)

    def _begin(self, command: Begin, params: Any, process: Any) -> None:
        """Publish the parameters of a version once for all workers, and call the worker's process.

        If workers have models of their own, the parameters of every order are published.
        """
        version = command.order.version
        if self._server.own_models or version not in self._published:
            self._published[version] = _put(params)
        reference = self._published[version]
        with contextlib.suppress(Exception):  # of a lost process, about which news follows
            order, worker = command.order, command.worker
            self._pool.call(worker, "step", order, reference, tag=order, process=process)
        used = {version, *self._server.points}
        for old in self._published.keys() - used:
            del self._published[old]


def _put(params: Any) -> Any:
    import ray

    return ray.put(jax.tree.map(np.asarray, params))


def _shapes(tree: Any) -> list:
    return [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
