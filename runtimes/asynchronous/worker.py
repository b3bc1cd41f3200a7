"""An asynchronous worker under a server, in a process of its own.

The worker computes the mini-batches of an order one by one, with their delays, and returns their
contribution. A concurrent call stops it between two mini-batches or inside a delay.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from algorithms.base import AXIS, Algorithm
from comms import collectives, hashing
from comms.trees import Tree
from runtimes import worker
from runtimes.asynchronous.pool import Member
from runtimes.equations import PART, inputs, needed, speaks, variables
from stragglers.processes import Process

MOMENT = 0.5  # s between two signs of life


class WorkerParts(NamedTuple):
    """Task and method of a worker."""

    algorithm: Algorithm
    losses: Callable[[Any, Any], jax.Array]
    examples: Any  # the training set, a pytree with leading axis [samples]
    sampler: Any  # `indices(workers, counters)`
    mini_batches: int  # of a full contribution
    delay: Process | None  # seconds of a mini-batch, seeded; None: the worker's own speed
    communication: float = 0.0  # s that are added to the real transfer of a contribution


class Order(NamedTuple):
    """Request to a worker for a contribution."""

    number: int  # of this worker's orders, from 1
    after: int  # the order from whose state this one goes on, 0 for the initial state
    keep: tuple[int, ...]  # older orders whose states may still be requested
    version: int  # of the parameters that come with the order
    first: int  # counter of its first mini-batch
    batches: int  # number of mini-batches
    attempt: int  # number of durations drawn before
    samples: int  # samples that all workers have seen so far
    seconds: float  # s on the clock of the run, at the dispatch of the order


class Delivery(NamedTuple):
    """Answer of a worker to an order."""

    contribution: Any  # arrays on the host, encoded if there is an `Uplink`; None if stopped
    busy: float  # s of computing
    finite: bool


def finite(tree: Any) -> bool:
    """Return whether all numbers of a contribution are finite."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


class AsynchronousWorker(Member):
    """Worker under a server; `recipe` builds its parts in its process."""

    def __init__(self, recipe: Callable[[], WorkerParts], me: int):
        self._parts, self._me = recipe(), me
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._current = self._stopped = 0  # numbers of the order under way, of the last stopped one
        self._states: dict[int, worker.WorkerState] = {}

    def ready(self, params: Any) -> None:
        """Compile the programs of an order, for parameters of these shapes."""
        parts = self._parts
        self._examples = jax.tree.map(jnp.asarray, parts.examples)
        params = jax.tree.map(jnp.asarray, params)
        self._states[0] = first_state(parts.algorithm, params, parts.mini_batches)
        encodes = uplink(parts.algorithm, params, parts.mini_batches)
        programs = _programs(parts.algorithm, parts.losses, parts.mini_batches, encodes)
        self._begin, self._one_more, self._end = programs
        order = Order(0, 0, (), 0, 0, parts.mini_batches, 0, 0, 0.0)
        if parts.delay is not None:
            parts.delay.duration(self._me, 0.0, 0)  # it may compile as well
        self._computed(order, params, delayed=False)

    def step(self, order: Order, params: Any) -> Delivery:
        """Return the contribution of an order at `params`; keep the state after it."""
        with self._lock:
            self._current = order.number
            if order.number <= self._stopped:
                return Delivery(None, 0.0, True)
            self._stop.clear()
        for number in [n for n in self._states if n < order.after and n not in order.keep]:
            del self._states[number]
        contribution, state, busy = self._computed(order, params)
        if contribution is None or self._stop.wait(self._parts.communication):
            return Delivery(None, busy, True)
        self._states[order.number] = state
        with self._computing():
            contribution = jax.tree.map(np.asarray, contribution)
        return Delivery(contribution, busy, finite(contribution))

    def interrupt(self, number: int) -> None:
        """Stop the order of this number, now or when it arrives."""
        with self._lock:
            self._stopped = max(self._stopped, number)
            if self._current <= self._stopped:
                self._stop.set()

    def news(self) -> float:
        """Wait a moment; return how long [s] the present program has been running, 0 in a delay."""
        time.sleep(MOMENT)
        return self._computing_for()

    def state(self, number: int) -> worker.WorkerState:
        """Return the state of the worker after an order, on the host."""
        return jax.device_get(self._states[number])

    def restore(self, number: int, state: worker.WorkerState) -> None:
        """Store the worker's state after the order of this number."""
        self._states[number] = jax.tree.map(jnp.asarray, state)

    def _computed(self, order: Order, params: Any, delayed: bool = True):
        """Return (contribution, the worker's new state, busy seconds); two Nones if stopped."""
        parts, begun = self._parts, time.monotonic()
        params = jax.tree.map(jnp.asarray, params)
        carry = self._begin(params, self._states[order.after].work)
        given = {
            "samples": hashing.words(order.samples),
            "worker": np.int32(self._me),
            "version": np.int32(order.version),
            "first": np.int32(order.first),
            "staleness": np.int32(0),
        }
        counters = np.arange(order.first, order.first + order.batches)
        table = parts.sampler.indices(np.full(counters.shape, self._me), counters)
        mark = begun
        for step in range(order.batches):
            own = np.asarray(table[step]), given, np.int32(step)
            with self._computing():
                carry = jax.block_until_ready(self._one_more(carry, self._examples, *own))
            if delayed and parts.delay is not None:
                at = order.seconds + mark - begun
                lasts = float(parts.delay.duration(self._me, at, order.attempt + step))
                self._stop.wait(max(0.0, mark + lasts - time.monotonic()))
            mark = time.monotonic()
            if self._stop.is_set() and order.number:
                return None, None, mark - begun
        own = {name: given[name] for name in ("worker", "version", "first")}
        state = self._states[order.after].exchange
        return *self._end(carry, state, params, np.int32(order.batches), own), mark - begun


# --- both ends of an exchange with a server, cut where it needs more than a worker knows

OWN = ("weight", "batches", "worker", "version", "first")  # extra arguments that a worker knows
TRIED = (1, 2, 3)  # numbers of contributions for which the worker's part must be the same


class Uplink:
    """Worker's part and server's part of a method's exchange, for parameters of certain shapes.

    An asynchronous worker can encode its message if the message depends only on values that it
    knows: its contribution, its state, its parameters and `OWN`. The exchange is traced, and cut
    where values begin to depend on other workers or on the update. The message holds all values of
    the worker that the server's part reads, such as the operands of collectives. The two parts
    together compute the whole exchange.
    """

    def __init__(self, algorithm: Algorithm, params: Tree, mini_batches: int):
        """Trace and cut the exchange; params: arrays or shapes; mini_batches: of a full round.

        Raises ValueError if the worker's part depends on more than the worker knows.
        """
        self._cut = functools.cache(functools.partial(_Exchange, algorithm, params, mini_batches))
        encoder = _same_part(self._cut, _Exchange.encoder)
        one = self._cut(1)
        self.message = tuple(  # shapes of a message
            jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in one.message
        )
        self.message_bytes = sum(shape.size * shape.dtype.itemsize for shape in self.message)
        # (contribution, state, parameters, `OWN` by name) -> (message, the worker's new state)
        self.encode = _of_worker(encoder, (self.message, one.shapes[1]))

    def reduce(self, messages: tuple, staleness: jax.Array, **update: Any) -> Tree:
        """Return the result of the exchange for the messages of an update.

        messages: leaves [k, ...]. staleness: [k] int32, in updates. update: `samples`, seen by all
        workers before the update, their `count`, and `current`, the newest parameters.
        """
        exchange = self._cut(len(staleness))
        decoder = exchange.decoder()

        def of_one(message, staleness):
            known = staleness, update["samples"], update["count"], update["current"]
            values = [*message, *jax.tree.leaves(known)]
            return jax.core.eval_jaxpr(decoder.jaxpr, decoder.consts, *values)

        reduced = jax.vmap(of_one, axis_name=AXIS)(messages, staleness)
        structure = jax.tree.structure(exchange.shapes[0])
        return jax.tree.unflatten(structure, [leaf[0] for leaf in reduced])


def uplink(algorithm: Algorithm, params: Tree, mini_batches: int) -> Uplink | None:
    """Return the uplink of a method, or None if workers are to send plain contributions.

    None: a message needs more than a worker knows, workers have models of their own, or messages
    are not smaller than contributions. The arguments are those that `Uplink` takes.
    """
    leaves, structure = jax.tree.flatten(_shapes(params))
    return None if algorithm.own_models else _uplink(algorithm, *leaves, structure, mini_batches)


@functools.cache
def _uplink(algorithm: Algorithm, *described: Any) -> Uplink | None:
    *leaves, structure, mini_batches = described
    try:
        found = Uplink(algorithm, jax.tree.unflatten(structure, leaves), mini_batches)
    except ValueError:
        return None
    dense = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return found if found.message_bytes < dense else None


def alone(
    algorithm: Algorithm, params: Tree, mini_batches: int
) -> Callable[..., tuple[Tree, Any]] | None:
    """Return the effect of a contribution on its own worker, for methods with workers' models.

    The function maps (contribution, state of the exchange, the worker's parameters, `OWN` by name)
    to (change of the parameters, new state). None: the effect needs more than the worker knows. The
    arguments are those that `Uplink` takes.
    """
    cut = functools.cache(functools.partial(_Exchange, algorithm, params, mini_batches))
    try:
        program = _same_part(cut, _Exchange.own_change)
    except ValueError:
        return None
    updates, state = cut(1).shapes
    return _of_worker(program, (updates.own, state))


class _Exchange:
    """Exchange that is traced for a number of contributions, and cut.

    shapes: of its result and of its state. message: variables that a worker sends.
    """

    def __init__(self, algorithm: Algorithm, params: Tree, mini_batches: int, contributions: int):
        params = _shapes(params)
        number, real = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32))
        given = [real if name == "weight" else number for name in OWN]
        own = params, jax.eval_shape(algorithm.exchange.init, params), params, given
        update = number, real, jax.ShapeDtypeStruct((), jnp.uint32), params

        def exchange(own, update):
            contribution, state, params, given = own
            staleness, samples, count, current = update
            return algorithm.exchange.update(
                contribution, state, params,
                nominal=mini_batches, active=None, staleness=staleness, samples=samples,
                count=count, current=current, **dict(zip(OWN, given, strict=True)),
            )  # fmt: skip

        trace = jax.make_jaxpr(exchange, axis_env=[(AXIS, contributions)], return_shape=True)
        try:
            with collectives.on_one_device():
                self._traced, self.shapes = trace(own, update)
        except TypeError as error:  # shapes that depend on a number of workers
            raise ValueError(
                f"uplink: there is no exchange of {contributions} contributions; let the server "
                "run the whole exchange of all workers"
            ) from error
        program, count = self._traced.jaxpr, len(jax.tree.leaves(own))
        self._ours, self._theirs = program.invars[:count], program.invars[count:]
        count = len(jax.tree.leaves(self.shapes[0]))
        self._reduced, self._state = program.outvars[:count], program.outvars[count:]
        equations = needed(variables(program.outvars), [], program.eqns)
        self._late, workers = set(self._theirs), set(self._ours)  # known late, known to a worker
        for e in equations:
            if speaks(e) or not self._late.isdisjoint(inputs(e)):
                self._late.update(e.outvars)
            elif not workers.isdisjoint(inputs(e)):
                workers.update(e.outvars)
        served = [e for e in equations if not self._late.isdisjoint(e.outvars)]
        read = [var for e in served for var in inputs(e)] + variables(self._reduced)
        self.message = list(dict.fromkeys(var for var in read if var in workers))

    def encoder(self) -> ClosedJaxpr:
        """Return the program: values of the worker -> (message, its new state)."""
        return self._ours_alone([*self.message, *self._state])

    def decoder(self) -> ClosedJaxpr:
        """Return the program: (message, values of the update) -> result of the exchange."""
        return self._program([*self.message, *self._theirs], self._reduced)

    def own_change(self) -> ClosedJaxpr:
        """Return the program: values of the worker -> (change of its own model, its new state)."""
        served = len(jax.tree.leaves(self.shapes[0].served))
        return self._ours_alone([*self._reduced[served:], *self._state])

    def _ours_alone(self, results: Sequence[Any]) -> ClosedJaxpr:
        if not self._late.isdisjoint(variables(results)):
            raise ValueError(
                "uplink: what a worker remembers depends on the others; let the server run the "
                "whole exchange"
            )
        return self._program(self._ours, results)

    def _program(self, reads: Sequence[Any], results: Sequence[Any]) -> ClosedJaxpr:
        """Return the part of the traced program that computes `results` from `reads`."""
        program = self._traced.jaxpr
        equations = needed(variables(results), reads, program.eqns)
        read = {var for e in equations for var in inputs(e)} | set(variables(results))
        pairs = zip(program.constvars, self._traced.consts, strict=True)
        constants = {var: value for var, value in pairs if var in read}
        ends = list(constants), list(reads), list(results)
        part = Jaxpr(*ends, equations, program.effects, PART)
        return ClosedJaxpr(part, list(constants.values()))


def _same_part(
    cut: Callable[[int], _Exchange], part: Callable[[_Exchange], ClosedJaxpr]
) -> ClosedJaxpr:
    """Return a worker's part; ValueError if it depends on the number of contributions."""
    one, *others = [part(cut(contributions)) for contributions in TRIED]
    for other in others:
        constants = zip(one.consts, other.consts, strict=False)
        equal = all(np.array_equal(a, b) for a, b in constants)
        if str(one.jaxpr) != str(other.jaxpr) or not equal:
            raise ValueError(
                "uplink: what a worker sends depends on how many there are in an update; let the "
                "server run the whole exchange"
            )
    return one


def _shapes(params: Tree) -> Tree:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), params)


def _of_worker(program: ClosedJaxpr, result: Any) -> Callable[..., Any]:
    """Return a worker's part as a function with results like `result`, see `alone`."""
    structure = jax.tree.structure(result)

    def run(contribution, state, params, **own):
        values = jax.tree.leaves((contribution, state, params, [own[name] for name in OWN]))
        return jax.tree.unflatten(
            structure, jax.core.eval_jaxpr(program.jaxpr, program.consts, *values)
        )

    return run


def first_state(algorithm: Algorithm, params: Any, mini_batches: int) -> worker.WorkerState:
    """Return the initial state of a worker, with `exchange` () if the server runs the exchange."""
    state = worker.init(algorithm, params)
    encodes = uplink(algorithm, params, mini_batches) is not None
    return state if encodes else state._replace(exchange=())


@functools.cache
def _programs(
    algorithm: Algorithm, losses: Callable, nominal: int, encodes: Uplink | None
) -> tuple[Callable, Callable, Callable]:
    """Return the programs of a contribution: its beginning, one mini-batch, its end."""

    @jax.jit
    def begin(params, work):
        state = worker.WorkerState(work, algorithm.exchange.init(params))
        return (*worker.begin(algorithm, params, state), work)

    @jax.jit
    def one_more(carry, examples, taken, given, index):
        point, gathered, work = carry
        mini_batch = jax.tree.map(lambda a: a[taken], examples)
        given = given | hashing.counted(given["samples"]) | {"active": None, "nominal": nominal}
        gathered, work = worker.one_more(
            algorithm, losses, point, gathered, work, mini_batch, given, index
        )
        return point, gathered, work

    @jax.jit
    def end(carry, exchange, params, batches, own):
        point, gathered, work = carry
        contribution = worker.contribution_of(algorithm, point, gathered, batches)
        if encodes is not None:
            known = {"weight": algorithm.weight(batches), "batches": batches, **own}
            contribution, exchange = encodes.encode(contribution, exchange, params, **known)
        return contribution, worker.WorkerState(work, exchange)

    return begin, one_more, end
