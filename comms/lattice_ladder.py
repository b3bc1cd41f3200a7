"""A conversation of two in the lattice codec, and the ladder that it climbs after a failed decode.

Both send their vector at once, in few bits, then a bit per bucket for what they could not read. It
goes again with more levels, and at last in full precision, so that finite numbers always arrive.
How far off the next partner will be is learnt from what has been read. Davies et al., arXiv
2002.09268.

The workers of an axis converse in pairs in one program, and climb together: what is sent again has
one of a few sizes, 1, 4, 16, ... buckets, large enough for the pair that needs most. One text
serves `jax.vmap`, `jax.shard_map` and pairs in programs of their own, bit for bit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import lattice

MARGIN = 2.0  # bound, in largest recent distances
DECAY = 0.9  # of what is remembered of them, in a conversation
GROWTH = 4  # of the number of buckets that are sent again, from one size to the next
WIDER = 4.0  # side of the second try, where q^2 levels do not fit into a colour


class Wire(NamedTuple):
    """How a worker is tied to the partner of its conversation, and to the other pairs."""

    swap: Callable[[Any], Any]  # a tree -> the partner's; one's own, if there is none
    agree: Callable[[jax.Array], jax.Array]  # a number -> the largest over the axis
    met: jax.Array  # [] bool, whether there is a partner
    lockstep: bool  # whether every pair sends again as much as the one that needs most


class Report(NamedTuple):
    """What a conversation took, of one of the two, and what it has learnt."""

    bound: jax.Array  # [buckets] float32, to expect of max |x - reference| in the next one
    failed: jax.Array  # int32, buckets that were sent again
    full_precision: jax.Array  # int32, buckets that went as float32 at last
    skipped: jax.Array  # int32, buckets that were not finite at one of the two
    extra_messages: jax.Array  # int32, beyond a first one and its answer
    extra_bytes: jax.Array  # float32, of these


class _Known(NamedTuple):
    """What the two know of each other half way up the ladder."""

    mine: jax.Array  # [buckets, n], as the partner reads it
    theirs: jax.Array  # [buckets, n], as it has been read
    missing: jax.Array  # [buckets] bool, what of theirs could not be read


class _Rung(NamedTuple):
    """A way to send some buckets again."""

    send: Callable  # (rows, their indices) -> (message, points)
    read: Callable  # (message, reference) -> (points, ok)
    row_bytes: int


def converse(rows, bound, wire: Wire, bits: int, key=None) -> tuple[jax.Array, Report]:
    """(theirs - mine [buckets, n], Report): the difference of two vectors, as both have read them.

    rows: float32 [buckets, n], one's own vector; bound: [buckets], expected of |x - reference|;
    key: for unbiased rounding, None: to the nearest point. The partner gets the same numbers with
    the other sign, so that whatever both add of them keeps their sum. A bucket that is not finite
    at one of the two is left out: its difference is 0. Raises ValueError as `lattice.encode` does.
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

    # Each way to its end, or whole vectors would be copied for the sake of the other.
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
    """[buckets] what to expect of the next partner: `MARGIN` times the largest recent distance.

    bound: the one before; heard: the partner's, which remembers other meetings; distance: max
    |theirs - x| that has just been found. What is not finite does not count.
    """
    heard, distance = (jnp.where(jnp.isfinite(a), a, 0) for a in (heard, distance))
    following = jnp.maximum(DECAY * jnp.maximum(bound, heard), MARGIN * distance)
    # Sides stay normal numbers for any bits; float32 cannot hold larger distances anyhow.
    return jnp.clip(following, 2.0**-100, 2.0**100)


def flag_bytes(count: int) -> int:
    """Bytes of an answer: a bit per bucket for what could not be read."""
    return -(-count // 8)


def sizes(count: int) -> list[int]:
    """How many of `count` buckets may be sent again at once: 1, 4, 16, ... and all of them."""
    found = []
    while count > (found[-1] if found else 0):
        found.append(min(GROWTH ** len(found), count))
    return found


def _coded(side, bits: int, n: int, key, rung: int) -> _Rung:
    """Colours of `bits`; side: [buckets] of all buckets, of which some are sent."""

    def send(rows, index):
        noise = None
        if key is not None:  # addressed by the bucket, not by how many are sent
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, rung), index)
            noise = jax.vmap(lambda key: jax.random.uniform(key, (n,), jnp.float32))(keys)
        return lattice.encode(rows, _taken(side, index), bits, noise)

    def read(message, reference):
        return lattice.decode(message, reference, bits)

    return _Rung(send, read, lattice.row_bytes(n, bits))


def _ask(missing, wire: Wire):
    """(what the partner is missing [buckets] bool, most that a pair needs, what is counted)."""
    count = missing.shape[0]
    asked = jnp.unpackbits(wire.swap(jnp.packbits(missing)), count=count).astype(bool)
    pair = jnp.maximum(missing.sum(dtype=jnp.int32), asked.sum(dtype=jnp.int32))
    needed = wire.agree(pair)
    return asked, needed, needed if wire.lockstep else pair


def _send_again(rung: _Rung, known: _Known, rows, asked, needed, wire: Wire) -> _Known:
    """What is known after `needed` buckets, at most, have gone each way of every pair."""
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
    """0 for nothing, else 1 + the index of the smallest size that holds as many."""
    return jnp.searchsorted(np.array([0, *sizes(count)]), needed).astype(jnp.int32)


def _resent(needed, count: int, row_bytes: int):
    return row_bytes * jnp.asarray([0, *sizes(count)], jnp.float32)[_which(needed, count)]
