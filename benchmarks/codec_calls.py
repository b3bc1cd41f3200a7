"""Calls that encode and decode a gradient once, the way one worker would, for timing.

The network is left out: a message is decoded by the worker that encoded it, and the union is its
own. Row-sparse gradients have rows of 500.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap, compact, powersgd, quantise, short_floats, sketch, sparse
from comms.collectives import AXIS
from comms.two_phase import Codec

ROW = 500
WORKERS = {"int8, both of 2 workers": 2}  # in a call, where there are more than one
SEED = 7


def gradients(size: int, density: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Three gradients of `size` entries: sparse in rows, sparse in coordinates, and dense."""
    rng = np.random.default_rng(0)
    rows = np.zeros((size // ROW, ROW), np.float32)
    chosen = rng.choice(len(rows), int(len(rows) * density), replace=False)
    rows[chosen] = rng.standard_normal((len(chosen), ROW), np.float32)
    coordinates = np.zeros(size, np.float32)
    chosen = rng.choice(size, int(size * density), replace=False)
    coordinates[chosen] = rng.standard_normal(len(chosen), np.float32)
    dense = rng.standard_normal((size // ROW, ROW), np.float32)
    return tuple(jnp.asarray(x) for x in (rows, coordinates, dense))


def s2(x, rows: int, columns: int, decode=sketch.decode_at) -> jax.Array:
    table = sketch.encode(x, rows, columns, SEED)
    return decode(table, bitmap.pack(bitmap.occupied(x)), len(x), SEED)


def exact(x, budget: int) -> jax.Array:
    """The exact variant of a single worker: its sums are copies."""
    return jax.vmap(lambda x: compact.all_reduce(x, budget)[0], axis_name=AXIS)(x[None])[0]


def top_k(x, k: int) -> jax.Array:
    return sparse.decode(sparse.top_k(x, k, ordered=False), x.size)


def threshold(x, ratio: float) -> jax.Array:
    message, _ = sparse.above(x, sparse.sidco_threshold(x, ratio), int(1.5 * ratio * x.size))
    return sparse.decode(message, x.size)


def random_k(x, k: int) -> jax.Array:
    key = jax.random.key(SEED)
    return sparse.random_k_decode(sparse.random_k(x, k, key), x.size, key)


def qsgd(x, levels: int) -> jax.Array:
    message = quantise.qsgd(x, levels, jax.random.key(SEED))
    return quantise.qsgd_decode(message, x.size, levels)


def natural(x) -> jax.Array:
    return quantise.natural_decode(quantise.natural(x, jax.random.key(SEED)))


def sign(x) -> jax.Array:
    return quantise.sign_decode(quantise.sign(x), x.size)


def int8(x) -> jax.Array:
    """Both of two workers, since a single one does not round: half of the time is one's."""
    return jax.vmap(quantise.int8_all_reduce, axis_name=AXIS)(jnp.stack([x, x]))


def low_rank(x, q) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(powersgd.all_reduce, axis_name=AXIS)(x[None], q[None])


def bfloat16(x) -> tuple[jax.Array, jax.Array]:
    """The message too, or the compiler would leave both conversions out."""
    message = x.astype(jnp.bfloat16)
    return message, message.astype(x.dtype)


def on_the_wire(x, written: Codec) -> tuple[jax.Array, jax.Array]:
    """The message too, as for `bfloat16`."""
    message = written.encode(x.reshape(1, -1), None)
    return message, written.decode(message, x.size)


def occupancy(x) -> jax.Array:
    return bitmap.unpack(bitmap.pack(bitmap.occupied(x)), len(x))


def candidates(size: int, density: float) -> dict[str, tuple[Callable, int]]:
    """Calls that encode and decode once, and the bytes of their messages."""
    rows, coordinates, dense = gradients(size, density)
    busy, k = max(1, int(len(rows) * density)), max(1, int(size * density))
    words = bitmap.payload_bytes
    q = powersgd.init(dense.shape, 4, jax.random.key(SEED))

    def call(codec, *args, **static):
        return functools.partial(jax.jit(functools.partial(codec, **static)), *args)

    found = {"copy": (call(jnp.copy, dense), 4 * size)}
    for r in (1, 5):
        found[f"S2, rows, r = {r}"] = (
            call(s2, rows, rows=r, columns=3 * busy),
            words(len(rows)) + sketch.payload_bytes(r, 3 * busy, (ROW,)),
        )
        found[f"S2, coordinates, r = {r}"] = (
            call(s2, coordinates, rows=r, columns=3 * k),
            words(size) + sketch.payload_bytes(r, 3 * k),
        )
    found["S2 peeled, rows, r = 3"] = (
        call(s2, rows, rows=3, columns=busy, decode=sketch.recover),
        words(len(rows)) + sketch.payload_bytes(3, busy, (ROW,)),
    )
    found["S2 peeled, coordinates, r = 3"] = (
        call(s2, coordinates, rows=3, columns=k, decode=sketch.recover),
        words(size) + sketch.payload_bytes(3, k),
    )
    budget = 2 * busy
    found["exact union, rows"] = (
        call(exact, rows, budget=budget),
        compact.payload_bytes(rows.shape, rows.dtype, budget),
    )
    found["top-k"] = call(top_k, dense, k=k), sparse.payload_bytes(k, dense.dtype)
    found["above SIDCo's threshold"] = (
        call(threshold, dense, ratio=density),
        sparse.payload_bytes(int(1.5 * density * size), dense.dtype),
    )
    found["random-k"] = call(random_k, dense, k=k), sparse.random_k_payload_bytes(k, dense.dtype)
    found["QSGD, 4 bits"] = call(qsgd, dense, levels=7), quantise.qsgd_payload_bytes(size, 7)
    found["natural"] = call(natural, dense), quantise.natural_payload_bytes(size)
    found["sign"] = call(sign, dense), quantise.sign_payload_bytes(size)
    found["int8, both of 2 workers"] = call(int8, dense), quantise.int8_payload_bytes(size, 2)
    found["bf16"] = call(bfloat16, dense), 2 * size
    for name, codec in (("bf16", short_floats.BFLOAT16), ("fp16", short_floats.FLOAT16)):
        found[f"{name}, as integers"] = (
            call(on_the_wire, dense, written=codec),
            codec.payload_bytes(size),
        )
    found["bitmap, rows"] = call(occupancy, rows), words(len(rows))
    found["bitmap, coordinates"] = call(occupancy, coordinates), words(size)
    found["PowerSGD, rank 4"] = call(low_rank, dense, q), powersgd.payload_bytes(dense.shape, 4)
    return found
