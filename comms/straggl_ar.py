"""StragglAR: an all-reduce whose first half is over before the slowest worker is ready.

A. Devraj, E. Ding, A. V. Kumar, R. Kleinberg, R. Singh, *Efficient AllReduce with Stragglers*,
arXiv 2505.23523, after the schedules of the authors' code. Of n = 2^q workers the last one is late.

    before    the others reduce-scatter n - 1 chunks by a ring: worker u holds the sum u
    round r   worker r and the late one swap chunk r, and both add; the chunks of earlier rounds
              double their holders, so that a chunk needs q more rounds

That takes n - 2 + q rounds of a chunk each after the late worker is ready, where a ring takes
2 (n - 1) rounds of 1 / n each. Every worker sends and receives one chunk in every round.

The authors' schedule pairs workers; this one, of as many rounds, is the same in every round but for
a shift. Put worker u at the place u - r modulo n - 1, and let v(p) = x^-(p + 1) be the elements of
GF(2^q) other than 0, x a root of a primitive polynomial. A chunk that was swapped a rounds ago is
held at the places whose v has a bits. Each of these sends it to a place p for which v(p - 1) is odd
and has a + 1 bits, and these v(p) have q bits; in its last round it goes to all places with fewer
bits. So places of different ages are different, as senders and as receivers. After the last swap
the late worker sends the last chunk anew in every round, which saves one round.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import gossip
from comms.collectives import Collective, ring_weighted_mean
from comms.messages import Payload


class Round(NamedTuple):
    """Step in which every worker sends one chunk and receives one."""

    senders: np.ndarray  # [n] worker that each one hears
    sent: np.ndarray  # [n] chunk that each one sends
    heard: np.ndarray  # [n] chunk that each one hears; -1: nothing new
    adds: np.ndarray  # [n] bool, the chunk is added to the own one, which it replaces otherwise


def check_workers(workers: int) -> None:
    """Raise ValueError unless there are 2, 4, 8, ... workers."""
    if workers < 2 or workers & (workers - 1):
        raise ValueError(
            f"straggl_ar: {workers} workers are no power of two; use 2, 4, 8 and so on, or "
            "collective='ring'"
        )


def _elements(bits: int) -> np.ndarray:
    """Return x^-1, x^-2, ..., x^-(2^bits - 1) of GF(2^bits), as polynomials in x, bit by bit."""
    for polynomial in range(2**bits + 1, 2 ** (bits + 1), 2):
        found = [1]
        while (v := found[-1]) != 1 or len(found) == 1:
            found.append((v ^ polynomial if v % 2 else v) >> 1)
        if len(found) == 2**bits:
            return np.array(found[1:])
    raise AssertionError("there is a primitive polynomial of every degree")


@functools.cache
def scatter_rounds(workers: int) -> np.ndarray:
    """Return senders [n - 2, n] of steps before the late worker, which hears itself, is ready."""
    check_workers(workers)
    ring = np.append((np.arange(workers - 1) - 1) % (workers - 1), workers - 1)
    return np.tile(ring, (workers - 2, 1))


@functools.cache
def rounds(workers: int) -> tuple[Round, ...]:
    """Return the steps after the late worker is ready."""
    check_workers(workers)
    late, depth = workers - 1, (workers - 1).bit_length()
    elements = _elements(depth)
    bits = np.array([int(v).bit_length() for v in elements])
    places, pairs = np.arange(late), []  # pairs: (age, place that sends, place that hears)
    for age in range(1, depth):
        hear = (places[(bits == age + 1) & (elements % 2 == 1)] + 1) % late
        pairs += zip([age] * len(hear), places[bits == age], hear, strict=True)
    last = places[(bits == depth) & (places > 0)]
    pairs += zip([depth] * len(last), last, places[bits < depth], strict=True)
    steps = []
    for r in range(late - 1 + depth):
        senders, sent = np.arange(workers), np.zeros(workers, int)
        heard, adds = np.full(workers, -1), np.zeros(workers, bool)
        chunk, swaps = min(r, late - 1), r < late
        senders[r % late], senders[late] = late, r % late
        sent[[r % late, late]] = heard[r % late] = chunk
        heard[late], adds[[r % late, late]] = chunk if swaps else -1, swaps
        for age, send, hear in pairs:
            one, other = (send + r) % late, (hear + r) % late
            senders[other] = one
            if r >= age:
                sent[one] = heard[other] = min(r - age, late - 1)
        steps.append(Round(senders, sent, heard, adds))
    return tuple(steps)


def all_reduce(x, axis: str) -> jax.Array:
    """Sum an array of any shape over one worker, or over 2^q of whom the last one is late."""
    workers = jax.lax.axis_size(axis)
    if workers == 1:
        return x
    late, me = workers - 1, jax.lax.axis_index(axis)
    chunks = jnp.pad(x.ravel(), (0, -x.size % late)).reshape(late, -1)

    held = chunks[(me - 1) % late]
    for step, senders in enumerate(scatter_rounds(workers), 1):
        held = gossip.hear(held, senders, axis) + chunks[(me - 1 - step) % late]
    chunks = chunks.at[me].set(jnp.where(me < late, held, 0), mode="drop")
    for one in rounds(workers):
        got = gossip.hear(chunks[jnp.asarray(one.sent)[me]], one.senders, axis)
        where = jnp.asarray(one.heard)[me]
        own = chunks[where]
        new = jnp.where(jnp.asarray(one.adds)[me], own + got, got)
        chunks = chunks.at[where].set(jnp.where(where < 0, own, new))
    return chunks.ravel()[: x.size].reshape(x.shape)


def payloads(size: int, workers: int, itemsize: int = 4) -> tuple[Payload, ...]:
    """Return the messages of a sum of `size` bytes, before and after the late worker is ready."""
    if workers == 1:
        return (Payload(),)
    chunk = itemsize * -(-size // (itemsize * (workers - 1)))
    after = np.array([one.senders for one in rounds(workers)])
    before = Payload(exchanged=chunk, matchings=scatter_rounds(workers), others=True)
    return before, Payload(exchanged=chunk, matchings=after)


COLLECTIVE = Collective(functools.partial(ring_weighted_mean, all_reduce=all_reduce), payloads)
