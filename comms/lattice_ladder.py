"""A conversation of two in the lattice codec, and the ladder that it climbs after a failed decode.

Both send their vector at once, in few bits, then a bit per bucket for unreadable buckets. These go
again with more levels, and at last in full precision, so that finite numbers always arrive. The
buckets read so far give the expected distance of the next partner. Davies et al., arXiv 2002.09268.

The workers of an axis converse in pairs in one program, and climb together: repeated messages have
one of a few sizes, 1, 4, 16, ... buckets, large enough for the pair that needs most. The same code
serves `jax.vmap`, `jax.shard_map` and pairs in programs of their own, bit for bit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import lattice

MARGIN = 2.0  # factor from the largest recent distance to the bound
DECAY = 0.9  # share of them that is remembered after a conversation
GROWTH = 4  # factor of the number of repeated buckets, from one size to the next
WIDER = 4.0  # factor of the side at the second try, where q^2 levels do not fit into a colour


class Wire(NamedTuple):
    """Ties of a worker to the partner of its conversation, and to the other pairs."""

    swap: Callable[[Any], Any]  # a tree -> the partner's; one's own, if there is none
    agree: Callable[[jax.Array], jax.Array]  # a number -> the largest over the axis
    met: jax.Array  # [] bool, true with a partner
    lockstep: bool  # every pair repeats as much as the one that needs most


class Report(NamedTuple):
    """Course of a conversation, for one of the two, and its lessons."""

    bound: jax.Array  # [buckets] float32, expected max |x - reference| of the next one
    failed: jax.Array  # int32, buckets that were sent again
    full_precision: jax.Array  # int32, buckets sent in float32 at last
    skipped: jax.Array  # int32, buckets that were not finite at one of the two
    extra_messages: jax.Array  # int32, beyond a first message and its answer
    extra_bytes: jax.Array  # float32, bytes of these


class _Known(NamedTuple):
    """Knowledge of the two about each other half way up the ladder."""

    mine: jax.Array  # [buckets, n], as the partner reads it
    theirs: jax.Array  # [buckets, n], as this worker has read it
    missing: jax.Array  # [buckets] bool, unreadable buckets of theirs


class _Rung(NamedTuple):
    """Encoding of buckets that are sent again."""

    send: Callable  # (rows, their indices) -> (message, points)
    read: Callable  # (message, reference) -> (points, ok)
    row_bytes: int


def converse(rows, bound, wire: Wire, bits: int, key=None) -> tuple[jax.Array, Report]:
    """Return (theirs - mine [buckets, n], Report): the difference of two vectors as both read them.

    rows: float32 [buckets, n], one's own vector; bound: [buckets], expected of |x - reference|;
    key: for unbiased rounding, None: to the nearest point. The partner gets the same numbers with
    the other sign, so that both can add any share of them and keep their sum. A bucket that is not
    finite at one of the two is left out: its difference is 0. Raises ValueError as `lattice.encode`
    does.
    """
    count, n = rows.shape
    stochastic = key is not None
    side = lattice.side_for(bound, bits, stochastic)
    first = _coded(side, bits, n, key, 0)
    message, mine = first.send(rows, jnp.arange(count))
    heard = wire.swap(message)
    theirs, ok = first.read(heard, rows)
    void = lattice.is_void(message) | lattice.is_void(heard)
    known = _Known(mine, theirs, wire.met & ~ok & ~void)
    asked, needed, spent = _ask(known.missing, wire)
    failed = asked.sum(dtype=jnp.int32)

    wide = min(2 * bits, lattice.BITS[1])
    more = _coded(side * (1.0 if wide == 2 * bits else WIDER), wide, n, key, 1)
    whole = _Rung(lambda rows, _: (rows, rows), lambda message, _: (message, True), 4 * n)

    def found(known):
        difference = jnp.where(void[:, None], 0, known.theirs - known.mine)
        return difference, lattice.largest(known.theirs - rows)

    # Each way to its end: otherwise whole vectors would be copied for the sake of the other way.
    def climb(known):
        known = _send_again(more, known, rows, asked, needed, wire)
        last, still_needed, still_spent = _ask(known.missing, wire)
        known = _send_again(whole, known, rows, last, still_needed, wire)
        return *found(known), last.sum(dtype=jnp.int32), still_spent

    def rest(known):
        return *found(known), jnp.zeros_like(failed), jnp.zeros_like(spent)

    difference, distance, full_precision, still_spent = jax.lax.cond(needed > 0, climb, rest, known)
    heard_bound = lattice.bound_of(heard, bits, stochastic)
    return difference, Report(
        bound=next_bound(bound, heard_bound, distance),
        failed=failed,
        full_precision=full_precision,
        skipped=(wire.met & void).sum(dtype=jnp.int32),
        extra_messages=2 * (spent > 0).astype(jnp.int32) + (still_spent > 0),
        extra_bytes=_resent(spent, count, more.row_bytes)
        + jnp.where(spent > 0, flag_bytes(count), 0)
        + _resent(still_spent, count, whole.row_bytes),
    )


def next_bound(bound, heard, distance) -> jax.Array:
    """Return the bound [buckets] for the next partner: `MARGIN` times the largest recent distance.

    bound: the one before; heard: the partner's, which remembers other meetings; distance: max
    |theirs - x| of this conversation. Values that are not finite do not count.
    """
    heard, distance = (jnp.where(jnp.isfinite(a), a, 0) for a in (heard, distance))
    following = jnp.maximum(DECAY * jnp.maximum(bound, heard), MARGIN * distance)
    # Sides stay normal numbers for any bits; float32 cannot hold larger distances anyhow.
    return jnp.clip(following, 2.0**-100, 2.0**100)


def flag_bytes(count: int) -> int:
    """Return the bytes of an answer: a bit per bucket for unreadable ones."""
    return -(-count // 8)


def sizes(count: int) -> list[int]:
    """Return the numbers of buckets that may be sent again at once: 1, 4, 16, ... and all."""
    found = []
    while count > (found[-1] if found else 0):
        found.append(min(GROWTH ** len(found), count))
    return found


def _coded(side, bits: int, n: int, key, rung: int) -> _Rung:
    """Return the rung of colours of `bits`; side: [buckets] of all buckets, sent or not."""

    def send(rows, index):
        noise = None
        if key is not None:  # addressed by the bucket, not by the number of sent buckets
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, rung), index)
            noise = jax.vmap(lambda key: jax.random.uniform(key, (n,), jnp.float32))(keys)
        return lattice.encode(rows, _taken(side, index), bits, noise)

    def read(message, reference):
        return lattice.decode(message, reference, bits)

    return _Rung(send, read, lattice.row_bytes(n, bits))


def _ask(missing, wire: Wire):
    """Return (the partner's missing buckets, most that a pair needs, counted buckets)."""
    count = missing.shape[0]
    asked = jnp.unpackbits(wire.swap(jnp.packbits(missing)), count=count).astype(bool)
    pair = jnp.maximum(missing.sum(dtype=jnp.int32), asked.sum(dtype=jnp.int32))
    needed = wire.agree(pair)
    return asked, needed, needed if wire.lockstep else pair


def _send_again(rung: _Rung, known: _Known, rows, asked, needed, wire: Wire) -> _Known:
    """Return the knowledge after `needed` buckets, at most, have gone each way of every pair."""
    count = rows.shape[0]

    def of_size(size: int):
        def branch(known):
            out, into = (
                jnp.nonzero(mask, size=size, fill_value=count)[0] for mask in (asked, known.missing)
            )
            message, points = rung.send(_taken(rows, out), out)
            found, ok = rung.read(wire.swap(message), _taken(rows, into))
            return _Known(
                known.mine.at[out].set(points, mode="drop"),
                known.theirs.at[into].set(found, mode="drop"),
                known.missing.at[into].set(jnp.logical_not(ok), mode="drop"),
            )

        return branch

    branches = [lambda known: known, *(of_size(size) for size in sizes(count))]
    return jax.lax.switch(_which(needed, count), branches, known)


def _taken(array, index):
    return array.at[index].get(mode="fill", fill_value=0)


def _which(needed, count: int):
    """Return 0 for nothing, else 1 + the index of the smallest size that holds as many."""
    return jnp.searchsorted(np.array([0, *sizes(count)]), needed).astype(jnp.int32)


def _resent(needed, count: int, row_bytes: int):
    return row_bytes * jnp.asarray([0, *sizes(count)], jnp.float32)[_which(needed, count)]
