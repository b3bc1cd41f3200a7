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


class Pending(NamedTuple):
    """Contribution that has arrived and waits for its update."""

    worker: int
    order: Order
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
    ) -> Schedule:
        """Record an update of these contributions, in order; return its row.

        busy_on: workers that have gone on to another contribution at the same parameters; the
        update cancels it. elsewhere: workers with another contribution that is not cancelled.
        """
        orders = [held.order for held in taken]
        last = {held.worker: n for n, held in enumerate(taken)}
        # A worker's last push lands with the update, unless the worker has gone on elsewhere.
        lands = [last[h.worker] == n and h.worker not in elsewhere for n, h in enumerate(taken)]
        arrived = np.array([held.arrived for held in taken])
        start = np.array([order.seconds for order in orders])
        finish = np.where(lands, now, [held.free for held in taken])
        more = [land and h.worker in busy_on for land, h in zip(lands, taken, strict=True)]
        computing = np.array([held.busy for held in taken])
        busy = np.minimum(computing + np.where(more, now - arrived, 0.0), finish - start)
        way = np.minimum(arrived - start - computing, finish - start - busy)

        def row(values, kind):
            return np.array([list(values)], kind)

        self._rows.append(
            Schedule(
                time=np.array([now]),
                workers=row((held.worker for held in taken), np.int32),
                start=start[None],
                finish=finish[None],
                batches=row((order.batches for order in orders), np.int32),
                first=row((order.first for order in orders), np.int64),
                version=row((order.version for order in orders), np.int32),
                busy=busy[None],
                communication=np.maximum(way, 0.0)[None],
                offset=self.updates,
                population=self._workers,
                samples=row((order.samples for order in orders), np.int64),
                restored=row((h.worker if h.restored else -1 for h in taken), np.int32),
                ignored=np.array([self.ignored], np.int32),
            )
        )
        self.ignored = 0
        workers, versions = [held.worker for held in taken], [order.version for order in orders]
        self._made.append(Made(now, workers, versions))
        return self._rows[-1]

    def observed(self, held: int) -> None:
        """Record that the rule has seen a loss, when `held` contributions waited for an update."""
        self._observed.append((self.updates, held))

    def take(self) -> Schedule | None:
        """Return the rows and events since the last call; None without any row."""
        if not self._rows:
            return None
        schedule = concatenate(self._rows)
        events = tuple(self.events)
        self._rows, self.events = [], []
        return replace(schedule, events=events)

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
        ends = np.cumsum(packed["width"], dtype=np.int64).tolist()
        spans = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        columns = [
            [packed[name][span].tolist() for span in spans] for name in ("workers", "version")
        ]
        times = packed["time"].tolist()
        self._made = [Made(*made) for made in zip(times, *columns, strict=True)]
        observed = packed["observed"]
        held = packed.get("held", np.zeros_like(observed))
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
    """Parameters at which workers with models of their own carry out their orders.

    params: of the server. mini_batches: of a full contribution.
    """

    def __init__(self, algorithm: Algorithm, params: Any, mini_batches: int):
        self._alone = alone(algorithm, params, mini_batches)
        self._at: dict[tuple[int, int], Any] = {}  # (worker, number of the order) -> parameters

        @jax.jit
        def of(state, who):
            return jax.tree.map(lambda a: a[who], (state.own, state.memory))

        @jax.jit
        def adopted(own, memory, served, version, anew):
            own = jax.tree.map(lambda a, s: jnp.where(anew, s, a), own, served)
            return algorithm.adopt(own, served, memory, version)

        @jax.jit
        def after(memory, fresh, served, point, contribution, batches, known):
            first = algorithm.exchange.init(served)
            memory = jax.tree.map(lambda a, new: jnp.where(fresh, new, a), memory, first)
            known |= {"weight": algorithm.weight(batches), "batches": batches}
            change, memory = self._alone(contribution, memory, point, **known)
            return optax.apply_updates(point, change), memory

        self._of, self._adopted, self._after = of, adopted, after

    def point(self, who: int, order: Order) -> Any:
        """Return the parameters at which the worker carries out the order."""
        return self._at[who, order.number]

    def begin(
        self,
        who: int,
        order: Order,
        state: State,
        served: Any,
        waiting: Sequence[Pending],
        anew: bool,
    ) -> None:
        """Compute and store the parameters at which the worker carries out the order.

        served: the server's parameters at the order's version. waiting: the worker's contributions
        that no update has taken yet, in order. anew: the worker begins with a fresh state.
        """
        own, memory = self._of(state, who)
        for held in waiting:
            own, memory = self._went_on(state, memory, self.point(who, held.order), held)
        self._at[who, order.number] = self._adopted(
            own, memory, served, np.int32(order.version), anew
        )

    def compile(self, state: State, held: Pending) -> None:
        """Run the programs of a worker's step once, to compile them; no state changes."""
        own, memory = self._of(state, held.worker)
        if self._alone is not None:  # a worker can go on before its update is made
            own, memory = self._went_on(state, memory, own, held)
        anew = np.int32(held.order.version), False
        jax.block_until_ready(self._adopted(own, memory, state.params, *anew))

    def forget(self, used: Collection[tuple[int, int]]) -> None:
        """Keep only the parameters of these orders."""
        self._at = {order: self._at[order] for order in used}

    def _went_on(self, state: State, memory: Any, point: Any, held: Pending) -> tuple[Any, Any]:
        """Return (own model, memory) of a worker after the contribution `held`, made at `point`."""
        order = held.order
        known = {
            "worker": np.int32(held.worker),
            "version": np.int32(order.version),
            "first": np.int32(order.first),
        }
        given = held.restored, state.params, point, held.contribution
        return self._after(memory, *given, np.int32(order.batches), known)


class Begin(NamedTuple):
    """Command to a worker to make a contribution at the parameters of the order's version."""

    worker: int
    order: Order


class Stop(NamedTuple):
    """Command to a worker to give up its order of this number."""

    worker: int
    number: int


Command = Begin | Stop


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
        self._algorithm, self._arrivals, self._renews = algorithm, arrivals, renews
        self._mini_batches, self._batch_size, self.workers = mini_batches, batch_size, workers
        params = jax.tree.map(jnp.asarray, params)
        encoded = uplink(algorithm, params, mini_batches)
        # The shapes of a contribution.
        self.expected = params if encoded is None else encoded.message
        memory = () if encoded else worker.init(algorithm, params).exchange
        own = params if algorithm.adopt is not None else ()
        memory, own = (
            jax.tree.map(lambda a: jnp.broadcast_to(a, (workers, *jnp.shape(a))), tree)
            for tree in (memory, own)
        )
        self.state = State(params, algorithm.server.init(params), memory, own)
        self.own_models = algorithm.adopt is not None
        self.remembers = remembers(algorithm, params)
        # A lost process loses the state that it holds itself, not the state at the server.
        in_process = jax.tree.leaves(first_state(algorithm, params, mini_batches))
        self._forgets = self.own_models or bool(in_process) or not jax.tree.leaves(memory)
        self.rule: Any = arrivals.init()
        self.update = self.samples = self.dropped = 0
        self.points = {0: params}  # version -> parameters that are in use
        self.consumed, self.attempts, self.numbers, self.counted, self.kept = np.zeros(
            (5, workers), np.int64
        )
        self.log = UpdateLog(workers)
        self._more = np.zeros(workers, np.int64)  # the order under way beside a held contribution
        self._renewed: set[int] = set()  # workers with a fresh state after the loss of a process
        self._in_flight: dict[int, Order] = {}
        self._held: list[Pending] = []
        self._models = OwnModels(algorithm, params, mini_batches) if self.own_models else None
        self._apply = update_program(algorithm, mini_batches, encoded)

    def compile(self, counts: Iterable[int]) -> None:
        """Compile updates of these numbers of contributions, by runs that change no state."""
        order = Order(0, 0, (), self.update, 0, 1, 0, 0, 0.0)
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), self.expected)
        held = [Pending(w, order, zeros, 0.0, 0.0, 0.0, False) for w in range(self.workers)]
        if self._models is not None:
            self._models.compile(self.state, held[0])
        for count in counts:
            taken = [held[n % self.workers] for n in range(count)]
            jax.block_until_ready(self._applied(taken, [self.state.params] * count))

    def begin(self, now: float) -> Iterator[Command]:
        """Yield a command to every worker to begin a contribution at the newest version."""
        for one in range(self.workers):
            self.rule = self._arrivals.begun(self.rule, one, self.update, now)
            yield self._begun(one, self.update, now)

    def arrived(self, who: int, delivery: Delivery, now: float) -> list[Command]:
        """Return the commands that follow from a delivery."""
        order = self._in_flight.get(who)
        if order is None or delivery.number != order.number:
            return []  # the worker has been given a newer order in the meantime
        del self._in_flight[who]
        decision = self._arrivals.on_arrival(self.rule, who, order.version, now)
        if decision.counts:
            own = (delivery.contribution, delivery.busy, now, now, who in self._renewed)
            self._held.append(Pending(who, order, *own))
            self._renewed.discard(who)
            self.consumed[who] += order.batches
            self.counted[who] = order.number
        else:
            self.log.ignored += 1
        commands = self._followed(decision, now)
        commands += self._sent(decision.proceed, order.version, now)
        for one in decision.proceed:
            self._more[one] = self._in_flight[one].number
        self._forget()
        return commands

    @property
    def due(self) -> float:
        """The time at which the rule reacts without a delivery [s]; inf: never."""
        return np.inf if self._arrivals.due is None else self._arrivals.due(self.rule)

    def passed(self, now: float) -> list[Command]:
        """Return the commands that follow at a time that is `due`."""
        commands = self._followed(self._arrivals.on_due(self.rule, now), now)
        self._forget()
        return commands

    def _followed(self, decision: Decision, now: float) -> list[Command]:
        """Make the update of a decision; return commands for the workers that it restarts."""
        self.rule = decision.state
        if decision.update:
            self._update(decision, now)
        return list(self._sent(decision.restart, self.update, now))

    def drop(self, who: int, now: float) -> list[Command]:
        """Leave out the samples of the worker's order; return the command for its next order."""
        order = self._in_flight[who]
        self.consumed[who] += order.batches
        self.dropped += 1
        return self.again(who, now)

    def again(self, who: int, now: float) -> list[Command]:
        """Return the command to repeat a lost order at the newest version; [] without an order."""
        if self._in_flight.pop(who, None) is None:
            return []  # its contribution is held for an update
        self.rule = self._arrivals.begun(self.rule, who, self.update, now)
        return [self._begun(who, self.update, now)]

    def point(self, who: int, order: Order) -> Any:
        """Return the parameters at which an order under way is carried out."""
        if self._models is None:
            return self.points[order.version]
        return self._models.point(who, order)

    def waits_for(self, who: int) -> Order | None:
        """Return the worker's order under way, or None."""
        return self._in_flight.get(who)

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
        before = self._in_flight.get(who)
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
        self.update = self.log.updates
        self.points = {self.update: state.params}
        self.rule = self.log.repeated(self._arrivals, self.rule, observed)

    def observe(self, seconds: float, loss: float) -> None:
        """Pass a training loss to a rule that follows it."""
        self.log.observed(len(self._held))
        if self._arrivals.observe is not None:
            self.rule = self._arrivals.observe(self.rule, seconds, loss)

    def _sent(self, workers: Sequence[int], version: int, now: float) -> Iterator[Command]:
        for who in workers:
            under_way = self._in_flight.get(who)
            if under_way is not None:
                yield Stop(who, under_way.number)
            yield self._begun(who, version, now)

    def _begun(self, who: int, version: int, now: float) -> Begin:
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
        self._in_flight[who] = order
        if self._models is not None:
            waiting = [held for held in self._held if held.worker == who]
            served = self.points[version]
            self._models.begin(who, order, self.state, served, waiting, who in self._renewed)
        return Begin(who, order)

    def _update(self, decision: Decision, now: float) -> None:
        """Apply the contributions of the workers in `decision.update`, in their order."""
        taken = []
        for who in decision.update:
            at = next(n for n, held in enumerate(self._held) if held.worker == who)
            taken.append(self._held.pop(at))
        if self.remembers and len(set(decision.update)) < len(decision.update):
            raise AssertionError("server: a worker delivers twice, against the rule's turnout")
        self.state = self._applied(taken, [self.point(h.worker, h.order) for h in taken])
        self.update += 1
        self.samples += self._batch_size * sum(held.order.batches for held in taken)
        self.points[self.update] = self.state.params
        busy_on = {  # workers that have gone on to another contribution at the same parameters
            who for who, order in self._in_flight.items() if order.number == self._more[who]
        }
        # A worker with a held contribution has come back and waits for the next update.
        elsewhere = (self._in_flight.keys() - busy_on) | {held.worker for held in self._held}
        self._held = [held._replace(free=now) for held in self._held]
        self.log.add(now, taken, busy_on, elsewhere)

    def _applied(self, taken: Sequence[Pending], points: Sequence[Any]) -> State:
        orders = [held.order for held in taken]
        own = {
            "worker": np.array([held.worker for held in taken], np.int32),
            "version": np.array([o.version for o in orders], np.int32),
            "first": np.array([o.first for o in orders], np.int32),
            "staleness": np.array([self.update - o.version for o in orders], np.int32),
        }
        fresh = np.array([held.restored for held in taken])
        return self._apply(
            self.state,
            tuple(held.contribution for held in taken),
            tuple(points),
            np.array([o.batches for o in orders], np.int32),
            fresh,
            own,
            hashing.words(self.samples),
        )

    def _forget(self) -> None:
        """Keep only the parameters that an order or a later update needs."""
        orders = [*self._in_flight.items(), *((held.worker, held.order) for held in self._held)]
        used = {order.version for _, order in orders} | {self.update}
        self.points = {version: self.points[version] for version in used}
        if self._models is not None:
            self._models.forget({(who, order.number) for who, order in orders})
