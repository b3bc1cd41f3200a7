"""Asynchronous workers under a server: processes without common steps, wall-clock time.

The launching process is the server, and every worker is an actor with its own JAX. The server goes
on in a thread while the training loop evaluates a snapshot. Every update becomes a row of the
Schedule when it is made, and the simulator can replay these rows.

A dead or silent process is replaced, and its worker loses the state in the process. The worker then
repeats its order at the newest version. Samples are replaced by new ones only if they have costs.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.base import Algorithm
from runtimes import base, packing, worker
from runtimes.asynchronous import pool
from runtimes.asynchronous.server import Begin, Command, ParameterServer, State, Stop
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
    counters: dict[str, np.ndarray]  # `counted`: orders whose states belong to the snapshot
    seconds: float
    update: int
    samples: int
    sent: int  # bytes of all contributions so far
    deaths: int  # of processes
    exhausted = False  # asynchronous workers never end


class AsynchronousRuntime(pool.ProcessRuntime):
    """The runtime of a method with a server and one task, see `runtimes.base.Runtime`.

    It reacts to news only until the server is at update `_limit`.
    """

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
        self._begin_run(params)
        self._server = ParameterServer(
            self.parts.algorithm,
            self._rule.arrivals,
            params,
            workers=self._workers,
            mini_batches=self.parts.mini_batches,
            batch_size=self.parts.sampler.batch_size,
            renews=self.parts.delay is not None and self.parts.delay.costs is not None,
        )
        refuse(self.parts.algorithm, self._rule, params, self.parts.mini_batches)
        self._limit = 0.0
        self.sent = 0  # bytes of all deliveries, also of contributions that are not used
        self._states: dict[int, tuple[int, worker.WorkerState]] = {}  # at which a run resumes
        self._published: tuple[Any, Any] = None, None  # parameters, and a reference to them
        return self._snapshot(0.0)

    def advance(
        self, run: AsynchronousRun, seconds: float, updates: float = np.inf
    ) -> tuple[AsynchronousRun, Schedule | None]:
        """Let the workers go on until the clock shows `seconds`, or for `updates` updates."""
        self._run_processes()
        with self.changed:
            self._limit = run.update + updates
            self.changed.notify_all()
            self.wait(seconds, lambda: self._server.update >= self._limit)
            schedule = self._server.log.take()
            ended = schedule is not None and self._server.update >= self._limit
            return self._snapshot(float(schedule.time[-1]) if ended else self.now()), schedule

    def observe(self, run: AsynchronousRun, seconds: float, loss: float) -> AsynchronousRun:
        """Pass a training loss to a rule that follows it."""
        with self.changed:
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
        states = [kept.get(who, first).exchange for who in range(self._workers)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def measured(self, run: AsynchronousRun) -> dict[str, float]:
        """Return the bytes sent per worker, and the numbers of deaths and drops."""
        return {
            "bytes_per_worker": run.sent / self._workers,
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
        self.sent, self.deaths = packed["sent"].tolist()
        self._server.resume(state, counters, history, observed)
        first = self._first_state()
        for who, number in enumerate(counters["counted"].tolist()):
            kept = _inside(f"worker/{who}/", packed)
            if kept or not jax.tree.leaves(first):
                self._states[who] = number, packing.unpack(first, kept)
            else:  # its process had died
                self._server.lost(who, self._elapsed)
                self._server.returned(who, self._elapsed)
        return self._snapshot(self._elapsed), None

    def _snapshot(self, seconds: float) -> AsynchronousRun:
        server, counters = self._server, self._server.counters()
        server.kept = counters["counted"].copy()
        return AsynchronousRun(
            server.state, counters, seconds, server.update, server.samples, self.sent, self.deaths
        )

    def _first_state(self) -> worker.WorkerState:
        """Return the initial state of a worker."""
        parts = self.parts
        state = first_state(parts.algorithm, self._params, parts.mini_batches)
        return jax.tree.map(jnp.asarray, state)

    def _kept(self, run: AsynchronousRun) -> dict[int, worker.WorkerState]:
        """Return the workers' states at the snapshot, without workers that have died since."""
        if not jax.tree.leaves(self._first_state()):
            return {}
        if self._pool is None or self._pool.closed:
            return {who: state for who, (_, state) in self._states.items()}
        import ray

        asked, found = {}, {}
        for who, number in enumerate(run.counters["counted"].tolist()):
            with contextlib.suppress(ray.exceptions.RayError):
                asked[who] = self._state_of(who, number)
        for who, reference in asked.items():
            with contextlib.suppress(ray.exceptions.RayError):
                found[who] = ray.get(reference, timeout=60)
        return found

    def _state_of(self, who: int, number: int) -> Any:
        """Return a reference to the worker's state after an order."""
        return self._pool.call(who, "state", number, tag=MEMORY, group=pool.ASIDE)

    def _start_all(self) -> Callable[[int], Any]:
        first = _put(self._server.state.params)
        for who in range(self._workers):
            self._pool.start(who, first)
        planned = (self._planned.batches > 0).sum(axis=1)
        self._server.compile(range(planned.min(), self._planned.workers.shape[1] + 1))
        return lambda who: self._pool.start(who, first)

    def _open(self) -> None:
        for who in range(self._workers):
            self._alive.add(who)
            self._listen(who)
        for who, state in self._states.items():
            self._pool.call(who, "restore", *state)
        self._send(self._server.begin(self.now()))

    def _react(self, news: pool.News) -> None:
        self._wake()  # first everything that was due before the news
        with self._before_the_limit():
            self._send(self._heed(news))

    def _rest(self) -> float:
        with self.changed:
            return min(super()._rest(), max(0.0, self._server.due - self.now()))

    def _wake(self) -> None:
        while self._server.due <= self.now():  # only this thread changes it
            with self._before_the_limit():
                self._send(self._server.passed(self.now()))

    @contextlib.contextmanager
    def _before_the_limit(self) -> Iterator[None]:
        """Hold `changed` in a block, which begins once further updates are allowed."""
        with self.changed:
            self.changed.wait_for(lambda: self._server.update < self._limit or self._closing)
            yield

    def _heed(self, news: pool.News) -> list[Command]:
        """Return the commands that follow from news."""
        who, now = news.member, self.now()
        if news.kind == "lost":
            self._died_again(who, "delivering anything")
            self._server.lost(who, now)
            self._pool.start(who, _put(self._server.state.params))
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

    def _send(self, commands: Iterable[Command]) -> None:
        """Hand commands to the thread that talks to the workers."""
        for command in commands:
            if isinstance(command, Stop):
                stop = command.worker, "interrupt", command.number
                self._aside.submit(self._pool.call, *stop, group=pool.ASIDE)
            else:
                process = self._pool.handle(command.worker)  # a later one lacks the order's state
                self._aside.submit(self._try, self._hand_out, command, process)

    def _hand_out(self, command: Begin, process: Any) -> None:
        """Call the worker's process; parameters are published once for all workers."""
        if self._closing:
            return
        if self._published[0] is not command.params:
            self._published = command.params, _put(command.params)
        order, reference = command.order, self._published[1]
        with contextlib.suppress(Exception):  # of a lost process, about which news follows
            self._pool.call(command.worker, "step", order, reference, tag=order, process=process)


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


def _put(params: Any) -> Any:
    import ray

    return ray.put(jax.tree.map(np.asarray, params))


def _shapes(tree: Any) -> list:
    return [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
