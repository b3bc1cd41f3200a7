"""All-reduce that sends codes twice: values are added in float32, whatever their codes.

Every worker writes its array in chunks, one per worker, and sends each to the worker of this chunk
(all-to-all); this worker reads and adds them, writes the sum and sends it to all (all-gather). So
2 (n - 1) / n of an array of codes are sent, as by a ring. A value is rounded once per contribution
and once in the sum, whose order is fixed: all runtimes find the same bits if a code is read
exactly. An all-reduce in the short type itself would round after every addition.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from comms.collectives import AXIS


class Codec(NamedTuple):
    """Codec of rows of float32, each by itself."""

    encode: Callable[[jax.Array, Any], Any]  # (float32 [rows, m], key or None) -> [rows, ...] each
    decode: Callable[[Any, int], jax.Array]  # (message, m) -> float32 [rows, m]
    payload_bytes: Callable[[int], int]  # m -> bytes of one row's message


class Reduced(NamedTuple):
    """Results of an all-reduce, as a worker knows them."""

    total: jax.Array  # x's shape, float32: the sum over the workers, equal on all of them
    sent: jax.Array  # x's shape, float32: this worker's x as the others read it
    left: jax.Array  # float32 [chunk]: of this worker's chunk the sum less its written code


def all_reduce(x, codec: Codec, axis: str = AXIS, key=None, owed=None) -> Reduced:
    """Sum an array of any shape over the workers; codes are sent twice.

    key: of this worker, for codecs that round at random. owed: float32 [chunk], added to the sum of
    this worker's chunk before it is written. A single worker sends and rounds nothing.
    """
    workers = jax.lax.axis_size(axis)
    flat = jnp.ravel(x).astype(jnp.float32)
    chunk = chunk_entries(x.size, workers)
    if workers == 1 or x.size == 0:
        whole = flat if owed is None else flat + owed
        return Reduced(whole.reshape(x.shape), flat.reshape(x.shape), jnp.zeros(chunk))
    chunks = jnp.pad(flat, (0, workers * chunk - x.size)).reshape(workers, chunk)
    keys = (None, None) if key is None else jax.random.split(key)
    message = codec.encode(chunks, keys[0])
    received = jax.lax.all_to_all(message, axis, split_axis=0, concat_axis=0)
    mine = _added(codec.decode(received, chunk))
    if owed is not None:
        mine = mine + owed
    place = jax.lax.axis_index(axis) * chunk + jnp.arange(chunk)
    mine = jnp.where(place < x.size, mine, 0)  # some codes have no zero for the padding
    written = codec.encode(mine[None], keys[1])
    rows = jax.tree.map(lambda a: a[0], written)
    total = codec.decode(jax.lax.all_gather(rows, axis), chunk)
    left = jnp.where(place < x.size, mine - codec.decode(written, chunk)[0], 0)
    total, sent = (
        rows.ravel()[: x.size].reshape(x.shape) for rows in (total, codec.decode(message, chunk))
    )
    return Reduced(total, sent, left)


def at_own_chunk(left, size: int, axis: str = AXIS) -> jax.Array:
    """Return float32 [size], `left` at this worker's chunk and 0 elsewhere."""
    everywhere = jnp.zeros(jax.lax.axis_size(axis) * left.size, left.dtype)
    start = jax.lax.axis_index(axis) * left.size
    return jax.lax.dynamic_update_slice(everywhere, left, (start,))[:size]


def chunk_entries(size: int, workers: int) -> int:
    """Return the entries of the chunk that a worker adds up."""
    return -(-size // workers)


def payload_bytes(size: int, workers: int, codec: Codec) -> int:
    """Return the bytes of the codes of all chunks; 2 (n - 1) / n are sent as by a ring."""
    return workers * codec.payload_bytes(chunk_entries(size, workers)) if size else 0


def _added(rows):
    """Sum over the first axis by halves: an order of additions that is the same everywhere."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = jnp.concatenate([rows[:half] + rows[half : 2 * half], rows[2 * half :]])
    return rows[0]
