"""Asynchronous workers on the toy regression, as their processes build them."""

import functools

import numpy as np
import optax

from algorithms import (
    all_reduce,
    async_diloco,
    decoupled_diloco,
    easgd,
    local_sgd,
    one_bit_adam,
    ringleader,
    top_k,
)
from algorithms.base import scale_by_samples
from runtimes.asynchronous.runtime import AsynchronousRuntime
from runtimes.asynchronous.worker import WorkerParts
from runtimes.simulate import Simulator
from stragglers import delays
from stragglers.processes import as_process
from stragglers.rule import most_mini_batches
from stragglers.rules.replay import recorded
from tests import planned
from tests.runtimes.toy import DATA, SAMPLES, losses

N = 4
LAW = delays.exponential(0.02)


def optimizer():
    return optax.chain(optax.trace(0.9), scale_by_samples(0.02, lambda seen: 1 / (1 + seen / 50)))


METHODS = {
    "all_reduce": lambda: all_reduce(optimizer()),
    "top_k": lambda: top_k(optimizer(), ratio=0.3),
    "local_sgd": lambda: local_sgd(optimizer()),
    "easgd": lambda: easgd(optimizer(), N),
    "decoupled_diloco": lambda: decoupled_diloco(optimizer(), fragments=2, alpha=0.25),
    "ringleader": lambda: ringleader(optimizer(), N),
    "async_diloco": lambda: async_diloco(optimizer(), N, period=3),
}
# All workers remember the same, so that none may be missing in an update.
IN_STEP = {
    "one_bit_adam": lambda: one_bit_adam(scale_by_samples(0.02), N, warmup_updates=10),
    "top_k/warm-up": lambda: top_k(optimizer(), ratio=0.3, warmup_updates=10),
}


@functools.cache
def method_of(name):
    """Return the method, the same one for all workers of a process: its programs are kept by it."""
    return (METHODS | IN_STEP)[name]()


def parts(method, mini_batches=1, law=LAW, seed=3):
    """Return the parts of an asynchronous worker."""
    delay = None if law is None else as_process(law).seeded(seed)
    most = most_mini_batches(mini_batches)
    return WorkerParts(method_of(method), losses, DATA, SAMPLES, most, delay)


def actors(method, wait, mini_batches=1, law=LAW, workers=N, **knobs):
    """Return the runtime of a method on the toy problem."""
    recipe = functools.partial(parts, method, mini_batches, law)
    rule = planned.rule(wait, law or LAW, workers, mini_batches, 3, **knobs)
    return AsynchronousRuntime(recipe(), recipe, rule)


def used_once(schedule, mini_batches, workers=N):
    """No sample of a worker is skipped, and none is in two contributions."""
    for who in range(workers):
        first = np.sort(schedule.first[schedule.workers == who])
        own = np.broadcast_to(mini_batches, workers)[who]
        np.testing.assert_array_equal(first, own * np.arange(first.size))


def replayed(method, schedule, mini_batches=1):
    """Return a simulator of the schedule of a run."""
    most = most_mini_batches(mini_batches)
    rule = recorded(schedule)
    return Simulator(method_of(method), losses, DATA, SAMPLES, rule, mini_batches=most)
