"""All-reduce by recursive halving and doubling: a ring's bytes in 2 log2 n steps.

The cost is `comms.cost.halving_doubling`, as in Shi, Chu, Li, "MG-WFBP", arXiv 1811.11141.
Of n = 2^q workers, worker i swaps halves of its array with the worker whose number differs in the
highest bit, and adds; then in the next lower bit, with a half of the rest, and so on. After q steps
it has the sum of one share of 1 / n. Swaps in reverse order then give all shares to every worker.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from comms import cost, gossip
from comms.collectives import Collective, ring_weighted_mean
from comms.messages import Payload


def distances(workers: int) -> list[int]:
    """Return the distance of partners in each step of the first half; ValueError unless n = 2^q."""
    cost.halving_doubling(workers, 0.0, 0.0)  # refuses other numbers
    return [2**bit for bit in reversed(range(workers.bit_length() - 1))]


def all_reduce(x, axis: str) -> jax.Array:
    """Sum an array of any shape over 2^q workers."""
    workers, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    everyone = np.arange(workers)
    held, apart = jnp.pad(x.ravel(), (0, -x.size % workers)), distances(workers)

    for distance in apart:
        lower, upper = jnp.split(held, 2)
        keeps_upper = (me // distance) % 2 == 1
        sent = jnp.where(keeps_upper, lower, upper)
        held = jnp.where(keeps_upper, upper, lower) + gossip.hear(sent, everyone ^ distance, axis)
    for distance in reversed(apart):
        got, is_upper = gossip.hear(held, everyone ^ distance, axis), (me // distance) % 2 == 1
        both = jnp.where(is_upper, got, held), jnp.where(is_upper, held, got)
        held = jnp.concatenate(both)
    return held[: x.size].reshape(x.shape)


def payloads(size: int, workers: int, itemsize: int = 4) -> tuple[Payload, ...]:
    """Return the messages of a sum of `size` bytes, one after the other."""
    share = itemsize * -(-size // (itemsize * workers))
    apart = distances(workers)
    steps = [*apart, *reversed(apart)]
    return tuple(
        Payload(exchanged=share * distance, matchings=np.arange(workers)[None] ^ distance)
        for distance in steps
    ) or (Payload(),)


COLLECTIVE = Collective(functools.partial(ring_weighted_mean, all_reduce=all_reduce), payloads)
