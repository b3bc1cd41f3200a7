"""Messages of some entries of a vector: the largest, those above a threshold, or random ones.

An array of any shape and float dtype is seen as a flat vector of `size` entries. Values travel in
the array's dtype, are added in float32 and come back as float32 [size]. No scaling is applied:
unsent entries belong in error feedback.

A vector that is not finite (NaN or infinite somewhere) is sent as NaN and decodes to NaN
everywhere, because the entry itself may be unsent.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap, hashing
from comms.collectives import AXIS


class Sparse(NamedTuple):
    """Message of k entries with distinct indices; an unused entry has an index >= `size`."""

    values: jax.Array  # [k], the dtype of the vector
    indices: jax.Array  # int32 [k]


LARGE = 2**20  # entries from which on sorting takes longer than a first choice by a threshold
SAMPLES = 2**16  # entries from which that threshold is estimated


def top_k(x, k: int, ordered: bool = True) -> Sparse:
    """Pick the k entries of largest magnitude, all if there are fewer (arXiv 1809.07599).

    Of equal magnitudes the lowest indices are sent. ordered: the largest magnitude comes first, of
    equal ones the lowest index; otherwise entries come in any order, which takes less time.
    With many entries a sample sets a threshold that selects a few more than k, and only these are
    compared, unless they turn out to be fewer or many more.
    """
    x, k = jnp.ravel(x), min(_positive(k), x.size)
    largest = _sorted if ordered else _unsorted
    if x.size < LARGE:
        return _sorted(x, k)
    # A sample's count is off by its root, hardly ever by five times its root.
    expected = SAMPLES * k / x.size
    rank = int(expected + 5 * np.sqrt(expected) + 8)
    most = int((rank + 5 * np.sqrt(rank)) * x.size / SAMPLES)
    if most > x.size // 4:
        return largest(x, k)
    stride = x.size // SAMPLES
    place = jnp.arange(SAMPLES, dtype=jnp.uint32)
    sample = x[stride * place + hashing.lowbias32(place) % jnp.uint32(stride)]
    least = _kth_largest(_magnitude_bits(sample), rank)
    threshold = jax.lax.bitcast_convert_type(least, jnp.float32)
    chosen, found = above(x, threshold, most)

    def choice(_):
        within = largest(chosen.values, k)
        return Sparse(within.values, chosen.indices[within.indices])

    enough = (found >= k) & (found <= most)
    return jax.lax.cond(enough, choice, lambda x: largest(x, k), x)


def _sorted(x, k: int) -> Sparse:
    """Pick the k entries of largest magnitude, by sorting all."""
    _, indices = jax.lax.top_k(jnp.abs(x), k)
    return Sparse(_poisoned(x[indices], x), indices.astype(jnp.int32))


def _magnitude_bits(x) -> jax.Array:
    """Return the bits of the magnitudes as float32, int32 in the same order."""
    return jax.lax.bitcast_convert_type(jnp.abs(x).astype(jnp.float32), jnp.int32)


def _kth_largest(bits, k: int) -> jax.Array:
    """Return the k-th largest of non-negative int32, found from its highest bit to its lowest."""

    def lower_bit(step, least):
        raised = least | (jnp.int32(1 << 30) >> step)
        return jnp.where(jnp.sum(bits >= raised, dtype=jnp.int32) >= k, raised, least)

    return jax.lax.fori_loop(0, 31, lower_bit, jnp.int32(0))


def _unsorted(x, k: int) -> Sparse:
    """Pick the k entries of largest magnitude, by the k-th magnitude and a count of equal ones."""
    bits = _magnitude_bits(x)
    least = _kth_largest(bits, k)
    over, equal = bitmap.pack(bits > least), bitmap.pack(bits == least)
    slot, first = jnp.arange(k, dtype=jnp.int32), bitmap.count(over)
    indices = jnp.where(
        slot < first,
        bitmap.positions(over, k),
        bitmap.positions(equal, k)[jnp.maximum(slot - first, 0)],
    )
    return Sparse(_poisoned(x[indices], x), indices)


def above(x, threshold, capacity: int) -> tuple[Sparse, jax.Array]:
    """Pick the entries whose magnitude exceeds the threshold; also return their number, int32.

    Of more than `capacity` entries the first `capacity` are kept, whatever their magnitude.
    """
    x = jnp.ravel(x)
    words = bitmap.pack(~(jnp.abs(x).astype(jnp.float32) <= threshold))
    capacity = min(_positive(capacity), x.size)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    positions = bitmap.positions(words, capacity)
    values = x.at[positions].get(mode="fill", fill_value=0)
    indices = jnp.where(positions < x.size, positions, x.size + slots)
    return Sparse(_poisoned(values, x), indices), bitmap.count(words)


def decode(message: Sparse, size: int) -> jax.Array:
    """Return the vector, float32 [size], with zeros for unsent entries."""
    return gathered_sum(jax.tree.map(lambda a: a[None], message), size)


def all_gather_sum(message: Sparse, size: int, axis: str = AXIS) -> jax.Array:
    """Sum the workers' vectors, float32 [size]: every message goes to every worker."""
    return gathered_sum(jax.lax.all_gather(message, axis), size)


def gathered_sum(messages: Sparse, size: int) -> jax.Array:
    """Sum stacked messages, [n, k] each, in their order, so that all workers get equal bits."""
    finite = jnp.isfinite(messages.values).all()
    total = jnp.full(size, jnp.where(finite, 0.0, jnp.nan), jnp.float32)

    def add(total, message):
        added = total.at[message.indices].add(
            message.values.astype(jnp.float32), mode="drop", unique_indices=True
        )
        return added, None

    return jax.lax.scan(add, total, messages)[0]


def random_k(x, k: int, key) -> jax.Array:
    """Pick random entries [k], whose indices follow from a key shared by all workers.

    As all workers send the same indices, messages can be all-reduced. Every entry is sent with
    probability k / size: size / k times the decoded vector is unbiased. The entries are spread:
    one from each of k equal runs of entries after a random start, which needs no permutation.
    """
    x = jnp.ravel(x)
    return _poisoned(x[random_indices(x.size, k, key)], x)


def random_k_decode(values, size: int, key) -> jax.Array:
    """Return the vector, float32 [size], with zeros for unsent entries."""
    return decode(Sparse(values, random_indices(size, values.size, key)), size)


def random_indices(size: int, k: int, key) -> jax.Array:
    """Draw min(k, size) distinct indices of [0, size), int32, with equal probabilities."""
    if size == 0:
        return jnp.zeros(0, jnp.int32)
    k = min(_positive(k), size)
    length, longer = divmod(size, k)  # the first stretches are longer by one
    stretch = jnp.arange(k, dtype=jnp.int32)
    key_start, key_within = jax.random.split(key)
    within = jax.random.randint(key_within, (k,), 0, length + (stretch < longer))
    # Without the start, entries of the shorter stretches would be drawn more often.
    start = jax.random.randint(key_start, (), 0, size)
    first = stretch * length + jnp.minimum(stretch, longer)
    indices = (first + within).astype(jnp.uint32) + start.astype(jnp.uint32)  # up to 2 size
    return (indices % jnp.uint32(size)).astype(jnp.int32)


def payload_bytes(k: int, dtype) -> int:
    """Return the bytes of k values and indices, which every worker gathers from every other."""
    return k * (np.dtype(dtype).itemsize + 4)


def _positive(k: int) -> int:
    if k < 1:
        raise ValueError(f"sparse: k = {k} entries send nothing; set k >= 1")
    return k


def _poisoned(values, x):
    """Return the values, or NaN if any entry of x is not finite."""
    return jnp.where(jnp.isfinite(x).all(), values, jnp.nan)
