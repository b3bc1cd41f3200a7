"""The parameter server of asynchronous workers: its state, and its reactions to arrivals.

The server has no process, thread or clock. Arrivals come with their times, and the reactions are
returned as commands. The waiting rule decides through its `stragglers.rule.AsyncProtocol`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import Algorithm
from comms import hashing
from runtimes import worker
from runtimes.asynchronous.worker import Delivery, Order, Uplink, alone, first_state, uplink
from runtimes.base import remembers
from stragglers.rule import AsyncProtocol, Decision
from stragglers.schedule import Event, Schedule, concatenate


class Begin(NamedTuple):
    """Command to a worker to make a contribution at these parameters."""

    worker: int
    order: Order
    params: Any
    served: Any  # the server's parameters of the order's version; `params` unless models are own


class Stop(NamedTuple):
    """Command to a worker to give up its order of this number."""

    worker: int
    number: int


Command = Begin | Stop


class Pending(NamedTuple):
    """Contribution that has arrived and waits for its update."""

    worker: int
    order: Order
    point: Any  # parameters at which it was made
    contribution: Any
    busy: float  # s
    arrived: float  # s
    free: float  # s, time at which a worker that does not wait for the update goes on
    restored: bool  # its worker had begun with a fresh state, after the loss of its process


class Made(NamedTuple):
    """Facts about an update that a waiting rule needs."""

    time: float  # s
    workers: list[int]
    versions: list[int]


class UpdateLog:
    """Log of the rows since the last `take`, and of all updates since the run began.

    events: events since the last `take`.
    """

    def __init__(self, workers: int):
        self._workers = workers
        self.events: list[Event] = []
        self.ignored = 0  # contributions since the last update
        self._rows: list[Schedule] = []
        self._made: list[Made] = []
        self._observed: list[tuple[int, int]] = []  # (updates, contributions held) at each loss

    @property
    def updates(self) -> int:
        """The number of updates made."""
        return len(self._made)

    def add(
        self,
        now: float,
        taken: Sequence[Pending],
        busy_on: Collection[int],
        elsewhere: Collection[int],
    ) -> None:
        """Record an update of these contributions, in order.

        busy_on: workers that have gone on to another contribution at the same parameters; the
        update cancels it. elsewhere: workers with another contribution that is not cancelled.
        """
        workers, orders = [held.worker for held in taken], [held.order for held in taken]
        last = {who: n for n, who in enumerate(workers)}
        # A worker's last push lands with the update, unless the worker has gone on elsewhere.
        lands = [last[who] == n and who not in elsewhere for n, who in enumerate(workers)]
        more = [land and who in busy_on for land, who in zip(lands, workers, strict=True)]
        arrived, computing, free = (
            np.array([getattr(held, name) for held in taken])
            for name in ("arrived", "busy", "free")
        )
        start = np.array([order.seconds for order in orders])
        finish = np.where(lands, now, free)
        busy = np.minimum(computing + np.where(more, now - arrived, 0.0), finish - start)
        way = np.minimum(arrived - start - computing, finish - start - busy)
        columns = {
            "workers": np.int32(workers),
            "start": start,
            "finish": finish,
            "batches": np.int32([order.batches for order in orders]),
            "first": np.int64([order.first for order in orders]),
            "version": np.int32([order.version for order in orders]),
            "busy": busy,
            "communication": np.maximum(way, 0.0),
            "samples": np.int64([order.samples for order in orders]),
            "restored": np.int32([held.worker if held.restored else -1 for held in taken]),
        }
        self._rows.append(
            Schedule(
                time=np.array([now]),
                offset=self.updates,
                population=self._workers,
                ignored=np.array([self.ignored], np.int32),
                **{name: column[None] for name, column in columns.items()},
            )
        )
        self.ignored = 0
        self._made.append(Made(now, workers, columns["version"].tolist()))

    def observed(self, held: int) -> None:
        """Record that the rule has seen a loss, when `held` contributions waited for an update."""
        self._observed.append((self.updates, held))

    def take(self) -> Schedule | None:
        """Return the rows and events since the last call; None without any row."""
        if not self._rows:
            return None
        schedule = replace(concatenate(self._rows), events=tuple(self.events))
        self._rows, self.events = [], []
        return schedule

    def pack(self, updates: int) -> dict[str, np.ndarray]:
        """Return the contributors of the first `updates` updates and the positions of losses.

        A loss that was seen after these updates gets the last position, so that a resumed run sees
        it before its first new update.
        """
        made, observed = self._made[:updates], [min(at, (updates, 0)) for at in self._observed]
        return {
            "time": np.array([one.time for one in made]),
            "width": np.array([len(one.workers) for one in made], np.int64),
            "workers": np.array([who for one in made for who in one.workers], np.int64),
            "version": np.array([version for one in made for version in one.versions], np.int64),
            "observed": np.array([at for at, _ in observed], np.int64),
            "held": np.array([held for _, held in observed], np.int64),
        }

    def resume(self, packed: Mapping[str, np.ndarray]) -> None:
        """Take over the updates and losses that another log has packed."""
        ends = np.cumsum(packed["width"], dtype=np.int64)[:-1]
        columns = (np.split(packed[name], ends) for name in ("workers", "version"))
        self._made = [
            Made(time, workers.tolist(), versions.tolist())
            for time, workers, versions in zip(packed["time"].tolist(), *columns, strict=False)
        ]
        observed = packed["observed"]
        held = packed.get("held", np.zeros_like(observed))  # an older run has none
        self._observed = list(zip(observed.tolist(), held.tolist(), strict=True))

    def repeated(
        self, arrivals: AsyncProtocol, state: Any, losses: Sequence[tuple[float, float]]
    ) -> Any:
        """Return the state of a rule, from `state`, after all updates and the losses between."""
        waiting = list(zip(self._observed, losses[: len(self._observed)], strict=True))

        def observed(state, *until):
            while waiting and waiting[0][0] <= until:
                loss = waiting.pop(0)[1]
                if arrivals.observe is not None:
                    state = arrivals.observe(state, *loss)
            return state

        for update, made in enumerate(self._made):
            for held, arrival in enumerate(zip(made.workers, made.versions, strict=True)):
                state = observed(state, update, held)
                state = arrivals.begun(state, *arrival, made.time)
                state = arrivals.on_arrival(state, *arrival, made.time).state
            if arrivals.on_due is not None:
                state = arrivals.on_due(state, made.time).state
        return observed(state, np.inf)


class State(NamedTuple):
    """State of training, on the device of the server."""

    params: Any
    server: Any  # optimizer state
    memory: Any  # exchange state, [P, ...]; () if workers encode their messages
    own: Any = ()  # the workers' own models beside the server's, [P, ...]; () without such models


def update_program(
    algorithm: Algorithm, mini_batches: int, encoded: Uplink | None
) -> Callable[..., State]:
    """Return (state, contributions, points, ...) -> state, compiled per number of contributions."""

    @jax.jit
    def apply(state, contributions, points, batches, fresh, own, samples):
        seen = hashing.counted(samples)
        common = seen | {"nominal": mini_batches, "active": None, "current": state.params}
        contribution, points = (
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
            for trees in (contributions, points)
        )
        if encoded is not None:
            reduced = encoded.reduce(contribution, own["staleness"], current=state.params, **seen)
            params, server = worker.serve(
                algorithm, reduced, state.params, state.server, batches.sum(), common
            )
            return State(params, server, ())
        first = algorithm.exchange.init(state.params)
        held = jax.tree.map(
            lambda a, new: jnp.where(
                jnp.expand_dims(fresh, range(1, a.ndim)), new, a[own["worker"]]
            ),
            state.memory,
            first,
        )
        updates, after = worker.exchanged(
            algorithm, contribution, points, 0, worker.WorkerState((), held), batches, common, own
        )

        def put(tree, values):
            return jax.tree.map(lambda a, new: a.at[own["worker"]].set(new), tree, values)

        memory, models = put(state.memory, after.exchange), ()
        if algorithm.adopt is not None:
            models = put(state.own, optax.apply_updates(points, updates.own))
            updates = updates.served
        params, server = worker.served(
            algorithm, updates, state.params, state.server, batches, common
        )
        return State(params, server, memory, models)

    return apply


class OwnModels:
    """Programs for workers that have models of their own beside the server's."""

    def __init__(self, algorithm: Algorithm, params: Any, mini_batches: int):
        """Take the parameters of the server; mini_batches: of a full contribution."""
        change = alone(algorithm, params, mini_batches)
        self.may_go_on = change is not None  # before the update that takes a contribution

        @jax.jit
        def of(state, who):
            return jax.tree.map(lambda a: a[who], (state.own, state.memory))

        @jax.jit
        def adopted(own, memory, served, version, anew):
            own = jax.tree.map(lambda a, s: jnp.where(anew, s, a), own, served)
            return algorithm.adopt(own, served, memory, version)

        @jax.jit
        def after(memory, fresh, served, point, contribution, known):
            first = algorithm.exchange.init(served)
            memory = jax.tree.map(lambda a, new: jnp.where(fresh, new, a), memory, first)
            known |= {"weight": algorithm.weight(known["batches"])}
            moved, memory = change(contribution, memory, point, **known)
            return optax.apply_updates(point, moved), memory

        self._of, self._adopted, self._after = of, adopted, after

    def point(
        self, who: int, version: int, state: State, served: Any, waiting: Sequence[Pending],
        anew: bool,
    ) -> Any:  # fmt: skip
        """Return the parameters at which a worker begins a contribution.

        served: the server's parameters of this version. waiting: the worker's contributions that
        no update has taken yet, in order. anew: the worker begins with a fresh state.
        """
        own, memory = self._of(state, who)
        for held in waiting:
            known = {n: np.int32(getattr(held.order, n)) for n in ("version", "first", "batches")}
            known |= {"worker": np.int32(who)}
            own, memory = self._after(
                memory, held.restored, state.params, held.point, held.contribution, known
            )
        return self._adopted(own, memory, served, np.int32(version), anew)


class ParameterServer:
    """Server of a replicated method, or of a method whose workers have models beside the server's.

    The server stores the workers' models. An order comes with the worker's model, which `adopt`
    returns at the order's version. The returned contribution determines the worker's next model.

    arrivals: the waiting rule. mini_batches: of a full contribution. batch_size: samples of a
    mini-batch. renews: a worker that begins anew takes new samples, because samples have costs.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        arrivals: AsyncProtocol,
        params: Any,
        *,
        workers: int,
        mini_batches: int,
        batch_size: int,
        renews: bool = False,
    ):
        self._arrivals, self._renews = arrivals, renews
        self._batch_size, self.workers = batch_size, workers
        params = jax.tree.map(jnp.asarray, params)
        encoded = uplink(algorithm, params, mini_batches)
        # The shapes of a contribution.
        self.expected = params if encoded is None else encoded.message
        memory = () if encoded else worker.init(algorithm, params).exchange
        own_models = algorithm.adopt is not None
        memory, own = (
            jax.tree.map(lambda a: jnp.broadcast_to(a, (workers, *jnp.shape(a))), tree)
            for tree in (memory, params if own_models else ())
        )
        self.state = State(params, algorithm.server.init(params), memory, own)
        self._remembers = remembers(algorithm, params)
        # A lost process loses the state that it holds itself, not the state at the server.
        in_process = jax.tree.leaves(first_state(algorithm, params, mini_batches))
        self._forgets = own_models or bool(in_process) or not jax.tree.leaves(memory)
        self.rule: Any = arrivals.init()
        self.samples = self.dropped = 0
        self.consumed, self.attempts, self.numbers, self.counted, self.kept = np.zeros(
            (5, workers), np.int64
        )
        self.log = UpdateLog(workers)
        self._more = np.zeros(workers, np.int64)  # the order under way beside a held contribution
        self._renewed: set[int] = set()  # workers with a fresh state after the loss of a process
        self._in_flight: dict[int, Begin] = {}
        self._held: list[Pending] = []
        self._models = OwnModels(algorithm, params, mini_batches) if own_models else None
        self._apply = update_program(algorithm, mini_batches, encoded)

    @property
    def update(self) -> int:
        """The number of updates made."""
        return self.log.updates

    @property
    def due(self) -> float:
        """The time at which the rule reacts without a delivery [s]; inf: never."""
        return np.inf if self._arrivals.due is None else self._arrivals.due(self.rule)

    def compile(self, counts: Iterable[int]) -> None:
        """Compile updates of these numbers of contributions, by runs that change no state."""
        order, params = Order(0, 0, (), self.update, 0, 1, 0, 0, 0.0), self.state.params
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), self.expected)
        held = [
            Pending(who, order, params, zeros, 0.0, 0.0, 0.0, False) for who in range(self.workers)
        ]
        if self._models is not None:
            waiting = held[:1] if self._models.may_go_on else []
            point = self._models.point(0, self.update, self.state, params, waiting, False)
            jax.block_until_ready(point)
        for count in counts:
            jax.block_until_ready(self._applied([held[n % self.workers] for n in range(count)]))

    def begin(self, now: float) -> Iterator[Command]:
        """Yield a command to every worker to begin a contribution at the newest version."""
        for one in range(self.workers):
            yield self._anew(one, now)

    def arrived(self, who: int, delivery: Delivery, now: float) -> list[Command]:
        """Return the commands that follow from the delivery of the worker's order under way."""
        begun = self._in_flight.pop(who)
        order = begun.order
        decision = self._arrivals.on_arrival(self.rule, who, order.version, now)
        if decision.counts:
            made = delivery.contribution, delivery.busy, now, now, who in self._renewed
            self._held.append(Pending(who, order, begun.params, *made))
            self._renewed.discard(who)
            self.consumed[who] += order.batches
            self.counted[who] = order.number
        else:
            self.log.ignored += 1
        commands = self._followed(decision, now)
        commands += self._sent(decision.proceed, order.version, begun.served, now)
        for one in decision.proceed:
            self._more[one] = self._in_flight[one].order.number
        return commands

    def passed(self, now: float) -> list[Command]:
        """Return the commands that follow at a time that is `due`."""
        return self._followed(self._arrivals.on_due(self.rule, now), now)

    def drop(self, who: int, now: float) -> list[Command]:
        """Leave out the samples of the worker's order; return the command for its next order."""
        self.consumed[who] += self._in_flight[who].order.batches
        self.dropped += 1
        return self.again(who, now)

    def again(self, who: int, now: float) -> list[Command]:
        """Return the command to repeat a lost order at the newest version; [] without an order."""
        if self._in_flight.pop(who, None) is None:
            return []  # its contribution is held for an update
        return [self._anew(who, now)]

    def waits_for(self, who: int) -> Order | None:
        """Return the worker's order under way, or None."""
        return self._in_flight[who].order if who in self._in_flight else None

    def lost(self, who: int, now: float) -> None:
        """Record the loss of the worker's process, and of the state that the process held."""
        self.log.events.append(Event(now, who, "lost"))
        if self._forgets:
            self._renewed.add(who)
        self.counted[who] = self.kept[who] = 0

    def returned(self, who: int, now: float) -> list[Command]:
        """Record the worker's new process; return commands to repeat its order, if it had one.

        An order that was sent before the process was ready is stopped.
        """
        self.log.events.append(Event(now, who, "restored"))
        before = self.waits_for(who)
        stops = [] if before is None else [Stop(who, before.number)]
        return stops + self.again(who, now)

    def settled(self) -> np.ndarray:
        """Return the last order of each worker before its held contributions, [workers].

        A resumed run computes held contributions anew, from the worker's state after this order.
        """
        settled = self.counted.copy()
        for held in self._held:
            settled[held.worker] = min(settled[held.worker], held.order.after)
        return settled

    def counters(self) -> dict[str, np.ndarray]:
        """Return all counters; `consumed`, `counted` exclude contributions held or under way."""
        consumed = self.consumed.copy()
        for held in reversed(self._held):
            who, order = held.worker, held.order  # whose later orders may have been dropped
            consumed[who] = min(consumed[who] - order.batches, order.first)
        return {
            "consumed": consumed,
            "attempts": self.attempts.copy(),
            "numbers": self.numbers.copy(),
            "counted": self.settled(),
            "samples": np.array([self.samples]),
            "dropped": np.array([self.dropped]),
        }

    def resume(
        self,
        state: State,
        counters: Mapping[str, np.ndarray],
        history: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> None:
        """Take over the state of another server, whose rule has seen the losses `observed`."""
        self.state = state
        for name in ("consumed", "attempts", "numbers", "counted"):
            setattr(self, name, counters[name].copy())
        self.kept = self.counted.copy()
        lost = (self.counted == 0) & (self.consumed > 0)
        self._renewed = set(np.flatnonzero(lost).tolist()) if self._forgets else set()
        self.samples, self.dropped = (int(counters[n][0]) for n in ("samples", "dropped"))
        self.log.resume(history)
        self.rule = self.log.repeated(self._arrivals, self.rule, observed)

    def observe(self, seconds: float, loss: float) -> None:
        """Pass a training loss to a rule that follows it."""
        self.log.observed(len(self._held))
        if self._arrivals.observe is not None:
            self.rule = self._arrivals.observe(self.rule, seconds, loss)

    def _followed(self, decision: Decision, now: float) -> list[Command]:
        """Make the update of a decision; return commands for the workers that it restarts."""
        self.rule = decision.state
        if decision.update:
            self._update(decision, now)
        return list(self._sent(decision.restart, self.update, self.state.params, now))

    def _sent(
        self, workers: Sequence[int], version: int, served: Any, now: float
    ) -> Iterator[Command]:
        for who in workers:
            under_way = self.waits_for(who)
            if under_way is not None:
                yield Stop(who, under_way.number)
            yield self._begun(who, version, served, now)

    def _anew(self, who: int, now: float) -> Begin:
        """Return the command for an order at the newest version, of which the rule learns."""
        self.rule = self._arrivals.begun(self.rule, who, self.update, now)
        return self._begun(who, self.update, self.state.params, now)

    def _begun(self, who: int, version: int, served: Any, now: float) -> Begin:
        """Return the command for a worker's next order, which is under way from now on."""
        batches = self._arrivals.mini_batches(self.rule, who)
        self.numbers[who] += 1
        order = Order(
            number=int(self.numbers[who]),
            after=int(self.counted[who]),
            keep=(int(self.kept[who]), int(self.settled()[who])),
            version=version,
            first=int((self.attempts if self._renews else self.consumed)[who]),
            batches=batches,
            attempt=int(self.attempts[who]),
            samples=self.samples,
            seconds=now,
        )
        self.attempts[who] += batches
        point = served
        if self._models is not None:
            waiting = [held for held in self._held if held.worker == who]
            anew = who in self._renewed
            point = self._models.point(who, version, self.state, served, waiting, anew)
        self._in_flight[who] = Begin(who, order, point, served)
        return self._in_flight[who]

    def _update(self, decision: Decision, now: float) -> None:
        """Apply the contributions of the workers in `decision.update`, in their order."""
        taken = []
        for who in decision.update:
            at = next(n for n, held in enumerate(self._held) if held.worker == who)
            taken.append(self._held.pop(at))
        if self._remembers and len(set(decision.update)) < len(decision.update):
            raise AssertionError("server: a worker delivers twice, against the rule's turnout")
        self.state = self._applied(taken)
        self.samples += self._batch_size * sum(held.order.batches for held in taken)
        busy_on = {  # workers that have gone on to another contribution at the same parameters
            who for who, begun in self._in_flight.items() if begun.order.number == self._more[who]
        }
        # A worker with a held contribution has come back and waits for the next update.
        elsewhere = (self._in_flight.keys() - busy_on) | {held.worker for held in self._held}
        self._held = [held._replace(free=now) for held in self._held]
        self.log.add(now, taken, busy_on, elsewhere)

    def _applied(self, taken: Sequence[Pending]) -> State:
        orders = [held.order for held in taken]
        own = {
            "worker": np.int32([held.worker for held in taken]),
            "version": np.int32([order.version for order in orders]),
            "first": np.int32([order.first for order in orders]),
            "staleness": np.int32([self.update - order.version for order in orders]),
        }
        return self._apply(
            self.state,
            tuple(held.contribution for held in taken),
            tuple(held.point for held in taken),
            np.int32([order.batches for order in orders]),
            np.array([held.restored for held in taken]),
            own,
            hashing.words(self.samples),
        )
