"""Straggler-tolerant, communication-efficient distributed SGD, as a library.

    methods             dpsgd, matcha, s2_reducer, swarm, ...: all of `METHODS`
    own training loop   as_optax, as_local_steps, Algorithm
    graphs              graphs, mixing, matchings, activation_probabilities
    collectives         collectives, gossip
    codecs              reducers, quantise, lattice, sketch, bitmap, chunked
    cost models         costs, buckets
    stragglers          delays, delay_processes, rules, Setting, plan, Schedule

docs/library.md has an example of each. All else is a module below this package, as in
`from gossax.experiments import train`.
"""

if "__path__" not in globals():  # in a checkout; a wheel is a package
    import gossax_checkout

    __path__ = []
    gossax_checkout.begin()

from algorithms import *  # noqa: F403
from algorithms import ALGORITHMS as METHODS
from algorithms import Algorithm, reducers
from comms import (
    bitmap,
    buckets,
    chunked,
    collectives,
    gossip,
    lattice,
    mixing,
    quantise,
    sketch,
)
from comms import cost as costs
from comms import edge_colouring as matchings
from comms import topology as graphs
from comms.matcha import activation_probabilities
from runtimes.own_loop import as_local_steps, as_optax
from stragglers import delays, rules
from stragglers import processes as delay_processes
from stragglers.rule import Setting
from stragglers.rule import whole as plan
from stragglers.schedule import Schedule

__version__ = "0.3.0"
__all__ = [
    "METHODS", "Algorithm", "Schedule", "Setting", "__version__", "activation_probabilities",
    "as_local_steps", "as_optax", "bitmap", "buckets", "chunked", "collectives", "costs",
    "delay_processes", "delays", "gossip", "graphs", "lattice", "matchings", "mixing", "plan",
    "quantise", "reducers", "rules", "sketch", *METHODS,
]  # fmt: skip
