"""Methods whose workers meet in pairs on the toy regression, as their processes build them."""

import functools

import optax

from algorithms import ad_psgd, swarm
from algorithms.base import scale_by_samples
from comms import topology
from comms.messages import Row
from runtimes.asynchronous.pool import Options
from runtimes.asynchronous.worker import WorkerParts
from runtimes.gossip.runtime import GossipRuntime
from runtimes.gossip.worker import GossipParts
from runtimes.simulate import Simulator
from stragglers import delays
from stragglers.processes import as_process
from stragglers.rules.replay import recorded
from tests import planned
from tests.runtimes.toy import DATA, SAMPLES, X0, B, losses  # noqa: F401

N, H = 4, 2
GRAPH = topology.ring(N)
LAW = delays.exponential(0.005)


def optimizer(rate=0.02):
    """Momentum, and a rate that falls with the samples that have been seen."""
    return optax.chain(
        optax.trace(0.9), scale_by_samples(rate, lambda samples: 1 / (1 + samples / 100))
    )


# name -> (rate -> method, waiting rule, its options)
METHODS = {
    "float32": (lambda rate: swarm(optimizer(rate), GRAPH), "random_pairs", {}),
    "8 bits": (lambda rate: swarm(optimizer(rate), GRAPH, bits=8), "random_pairs", {}),
    "blocking": (
        lambda rate: swarm(optimizer(rate), GRAPH, blocking=True),
        "random_pairs",
        {"blocking": True},
    ),
    "ad_psgd": (lambda rate: ad_psgd(optimizer(rate), GRAPH), "bipartite_pairs", {}),
}


def method(name, rate=0.02):
    return METHODS[name][0](rate)


def parts(name, law=LAW, rate=0.02):
    """Return the parts of a node."""
    delay = None if law is None else as_process(law).seeded(3)
    worker = WorkerParts(method(name, rate), losses, DATA, SAMPLES, H, delay)
    _, wait, options = METHODS[name]
    return GossipParts(worker, planned.rule(wait, LAW, N, H, 0, graph=GRAPH, **options), False)


def meetings(name, law=LAW, **options):
    """Return the runtime of a method on the toy problem."""
    recipe = functools.partial(parts, name, law)
    return GossipRuntime(recipe(), recipe, Options(**options))


def replayed(name, schedule):
    """Return a simulator of the schedule of a run."""
    return Simulator(method(name), losses, DATA, SAMPLES, recorded(schedule), mini_batches=H)


def message_bytes(name):
    """Return the messages of two workers in a meeting, as the method counts them; no retries."""
    built = method(name)
    return sum(payload.met for payload in built.messages(X0, N, Row(0)))
