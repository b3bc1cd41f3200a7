"""The ladder above the lattice codec: what is sent after a failed decode, and what is learnt of it.

Buckets whose decode fails go again with more levels, then over a wider range, then in full
precision, so that a message of finite numbers always arrives. How far off the next reference will
be is learnt from the transfers before it. Davies et al., arXiv 2002.09268.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms.lattice import (
    BITS,
    BUCKET,
    HEADER_BYTES,
    as_sides,
    as_vector,
    buckets,
    by_bucket,
    decode,
    encode,
    longest_bucket,
    payload_bytes,
    side_for,
    spread,
)

WIDER = 4.0  # growth of the range per failure


class Report(NamedTuple):
    """What a transfer took; counts are of buckets."""

    failed: jax.Array  # [buckets] bool, whether the first decode failed though x was finite
    distance: jax.Array  # [buckets] float32, max |value - reference| in the end
    retries: jax.Array  # int32, sent again with q^2 levels
    widenings: jax.Array  # int32, then at four times the side
    full_precision: jax.Array  # int32, sent as float32 at last
    skipped: jax.Array  # int32, x not finite: left out
    bytes: jax.Array  # int32, sent by the sender; the answer, a bit per bucket, aside


def transfer(
    x, reference, bound, bits: int, key=None, bucket: int = BUCKET
) -> tuple[jax.Array, Report]:
    """(value [size], Report): x as it reaches a receiver holding ``reference``, whatever it takes.

    Buckets whose decode fails go again with q^2 levels (beyond 8 bits: 2^16 and 4 s), then at four
    times that side, then in full precision. Only where x has NaN or infinity is a bucket skipped:
    its value is the reference. bound: expected max |x - reference|, scalar or [buckets], known to
    the sender.

    Both ends in one program: for simulated workers, or where x has been gathered anyhow. A higher
    rung costs time only in a step in which some bucket needs it, under ``vmap`` as well.
    Raises ValueError for vectors whose worst case would not fit into int32 bytes.
    """
    x, reference = as_vector(x), as_vector(reference)
    if x.size != reference.size:
        raise ValueError(
            f"lattice: x has {x.size} coordinates, the reference {reference.size}; "
            "pass two vectors of one size"
        )
    count = buckets(x.size, bucket)
    wide = min(2 * bits, BITS[1])
    retry = 1.0 if wide == 2 * bits else WIDER  # q^2 would not fit: a wider side instead
    longest = longest_bucket(x.size, count)
    sizes = np.minimum(longest, x.size - longest * np.arange(count))
    again = 4 * wide * -(-sizes // 32) + HEADER_BYTES
    costs = np.stack([again, again, 4 * sizes])  # [3, buckets] bytes of every rung
    once = payload_bytes(x.size, bits, count)
    if once + costs.sum() >= 2**31:
        raise ValueError(
            f"lattice: {x.size} coordinates may take 2 GiB or more, which int32 cannot count; "
            "transfer the vector in parts"
        )
    side = as_sides(side_for(bound, bits, stochastic=key is not None), count)
    finite = jnp.isfinite(by_bucket(x, count)).all(1)

    def attempt(rung, side, bits):
        rung_key = None if key is None else jax.random.fold_in(key, rung)
        return decode(encode(x, side, bits, rung_key, bucket), reference)

    # A loop, since vmap turns a lax.cond into both of its branches, but leaves alone a loop that no
    # worker enters. Its body depends on the rung: a body for each rung would be hoisted out.
    def step(carry):
        rung, value, climbed = carry
        found, ok = attempt(rung, side * jnp.where(rung == 1, retry, WIDER * retry), wide)
        here = climbed == rung
        value = jnp.where(spread(here, x.size), found, value)
        return rung + 1, value, climbed + (here & ~ok)

    def is_needed(carry):
        rung, _, climbed = carry
        return (rung <= 2) & (climbed == rung).any()

    value, ok = attempt(0, side, bits)
    failed = finite & ~ok
    start = (jnp.int32(1), value, failed.astype(jnp.int32))
    _, value, climbed = jax.lax.while_loop(is_needed, step, start)
    value = jnp.where(spread(climbed == 3, x.size), x, value)

    took = climbed[None] >= np.arange(1, 4)[:, None]  # [3, buckets]
    retries, widenings, full_precision = took.sum(1, dtype=jnp.int32)
    return value, Report(
        failed=failed,
        distance=jnp.abs(by_bucket(value, count) - by_bucket(reference, count)).max(1, initial=0),
        retries=retries,
        widenings=widenings,
        full_precision=full_precision,
        skipped=(~finite).sum(dtype=jnp.int32),
        bytes=once + jnp.where(took, costs, 0).sum(dtype=jnp.int32),
    )


class Bound(NamedTuple):
    """What to expect of max |x - reference|, learnt from transfers."""

    bound: jax.Array  # [buckets] float32, y
    recent: jax.Array  # [buckets] float32, largest distance seen, forgotten slowly


def init_bound(size: int, initial: float, bucket: int = BUCKET) -> Bound:
    """A bound of ``initial`` for every bucket of a vector of ``size``.

    Too small costs a few retries, too large precision until it has decayed.
    """
    count = buckets(size, bucket)
    return Bound(jnp.full(count, initial, jnp.float32), jnp.zeros(count, jnp.float32))


def update_bound(state: Bound, failed, distance, margin: float = 2.0, decay: float = 0.99) -> Bound:
    """The bound after a transfer: four times as wide where it failed, else a little tighter.

    failed, distance: [buckets], of a ``Report``. The bound shrinks by ``decay`` a transfer, but not
    below ``margin`` times the largest recent distance, which is forgotten at the same pace; a
    distance found up the ladder counts. Under the float32 trap a bound that shrinks too far fails
    once and grows again.
    """
    distance = jnp.where(jnp.isfinite(distance), distance, 0)
    recent = jnp.maximum(distance, decay * state.recent)
    paced = jnp.where(failed, WIDER, decay) * state.bound
    # Sides stay normal numbers for any bits; float32 cannot hold larger distances anyhow.
    return Bound(jnp.clip(jnp.maximum(paced, margin * recent), 2.0**-100, 2.0**100), recent)
