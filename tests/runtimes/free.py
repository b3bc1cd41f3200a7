"""Free workers on the toy regression, as their processes build them."""

import functools

import numpy as np
import optax

from algorithms import all_reduce, decoupled_diloco, easgd, local_sgd, ringleader, top_k
from algorithms.base import scale_by_samples
from runtimes.actors import Actors
from runtimes.free_worker import Parts
from runtimes.simulate import Simulator
from stragglers import delays
from stragglers.processes import as_process
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
}
DIVERGING = {"diverging": lambda: all_reduce(optax.sgd(1e15))}


def parts(method, mini_batches=1, law=LAW, seed=3):
    """The parts of a free worker."""
    delay = None if law is None else as_process(law).seeded(seed)
    return Parts((METHODS | DIVERGING)[method](), losses, DATA, SAMPLES, mini_batches, delay)


def actors(method, wait, mini_batches=1, law=LAW, workers=N, **knobs):
    """The runtime of a method on the toy problem."""
    recipe = functools.partial(parts, method, mini_batches, law)
    rule = planned.rule(wait, law or LAW, workers, mini_batches, 3, **knobs)
    return Actors(recipe(), recipe, rule)


def used_once(schedule, mini_batches):
    """No sample of a worker is skipped, and none is in two contributions."""
    for who in range(N):
        first = np.sort(schedule.first[schedule.workers == who])
        np.testing.assert_array_equal(first, mini_batches * np.arange(first.size))


def replayed(method, schedule, mini_batches=1):
    """A simulator of what has happened."""
    return Simulator(
        METHODS[method](), losses, DATA, SAMPLES, recorded(schedule), mini_batches=mini_batches
    )
