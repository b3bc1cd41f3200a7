"""An asynchronous worker under a server, in a process of its own.

It takes the mini-batches of an order one by one, each as long as its delay says, and answers with
their contribution. A call from aside stops it between two mini-batches or inside a delay.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.base import Algorithm
from comms import hashing
from runtimes import worker
from runtimes.asynchronous.uplink import Uplink, uplink
from stragglers.processes import Process

MOMENT = 0.5  # s between two signs of life


class WorkerParts(NamedTuple):
    """The task and the method of a worker."""

    algorithm: Algorithm
    losses: Callable[[Any, Any], jax.Array]
    examples: Any  # the training set, a pytree with leading axis [samples]
    sampler: Any  # `indices(workers, counters)`
    mini_batches: int  # of a full contribution
    delay: Process | None  # seconds of a mini-batch, seeded; None: as long as it takes
    communication: float = 0.0  # s that a contribution takes beyond its real way


class Order(NamedTuple):
    """A contribution that a worker is asked for."""

    number: int  # of this worker's orders, from 1
    after: int  # the order whose state it goes on from, 0 for the initial one
    keep: tuple[int, ...]  # older orders whose states may be asked for still
    version: int  # of the parameters that come with it
    first: int  # counter of its first mini-batch
    batches: int  # mini-batches
    attempt: int  # durations drawn before
    samples: int  # seen by all workers so far
    seconds: float  # on the clock of the run, at the dispatch


class Delivery(NamedTuple):
    """The answer of a worker to an order."""

    number: int
    contribution: Any  # arrays on the host, encoded where it can be; None if it was stopped
    busy: float  # s of computing
    finite: bool


class Computing:
    """The sign of life of a worker: for how long a program of it has been running."""

    _computing_since: float | None = None

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        self._computing_since = time.monotonic()
        try:
            yield
        finally:
            self._computing_since = None

    def _computing_for(self) -> float:
        """Return the seconds of the program under way; 0 in a delay."""
        since = self._computing_since
        return 0.0 if since is None else time.monotonic() - since


def finite(tree: Any) -> bool:
    """Return whether all numbers of a contribution are."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


class AsynchronousWorker(Computing):
    """One worker under a server; `recipe` builds its parts in its process."""

    def __init__(self, recipe: Callable[[], WorkerParts], me: int):
        self._parts, self._me = recipe(), me
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._current = self._stopped = 0  # orders: under way, and the last that shall not be
        self._states: dict[int, worker.WorkerState] = {}

    def ready(self, params: Any) -> int:
        """Compile all that an order takes; returns the bytes of a contribution."""
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
        contribution, *_ = self._computed(order, params, delayed=False)
        return sum(leaf.nbytes for leaf in jax.tree.leaves(contribution))

    def step(self, order: Order, params: Any) -> Delivery:
        """Make the contribution of an order at `params`; its state is kept for the next one."""
        with self._lock:
            self._current = order.number
            if order.number <= self._stopped:
                return Delivery(order.number, None, 0.0, True)
            self._stop.clear()
        for number in [n for n in self._states if n < order.after and n not in order.keep]:
            del self._states[number]
        contribution, state, busy = self._computed(order, params)
        if contribution is None or self._stop.wait(self._parts.communication):
            return Delivery(order.number, None, busy, True)
        self._states[order.number] = state
        with self._computing():
            contribution = jax.tree.map(np.asarray, contribution)
        return Delivery(order.number, contribution, busy, finite(contribution))

    def interrupt(self, number: int) -> None:
        """Stop the order of this number, now or when it comes."""
        with self._lock:
            self._stopped = max(self._stopped, number)
            if self._current <= self._stopped:
                self._stop.set()

    def news(self) -> float:
        """Say after a moment for how long a mini-batch is being computed [s]; 0 in a delay."""
        time.sleep(MOMENT)
        return self._computing_for()

    def state(self, number: int) -> worker.WorkerState:
        """Return the memory of the worker after an order, on the host."""
        return jax.device_get(self._states[number])

    def restore(self, number: int, state: worker.WorkerState) -> None:
        """Take this for what the worker remembers after the order of this number."""
        self._states[number] = jax.tree.map(jnp.asarray, state)

    def _computed(self, order: Order, params: Any, delayed: bool = True):
        """(contribution, the worker's new state, busy seconds); None, None where it was stopped."""
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


def first_state(algorithm: Algorithm, params: Any, mini_batches: int) -> worker.WorkerState:
    """Return the memory of a worker at first, without its exchange where the server runs that."""
    state = worker.init(algorithm, params)
    encodes = uplink(algorithm, params, mini_batches) is not None
    return state if encodes else state._replace(exchange=())


@functools.cache
def _programs(
    algorithm: Algorithm, losses: Callable, nominal: int, encodes: Uplink | None
) -> tuple[Callable, Callable, Callable]:
    """Return the programs of a contribution: its beginning, a mini-batch, its end."""

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
