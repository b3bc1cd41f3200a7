"""Calls that encode and decode a gradient once, the way one worker would, for timing.

The network is left out: a message is decoded by the worker that encoded it, and the union is its
own. Row-sparse gradients have rows of 500.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.powersgd import factor_bytes, factored_all_reduce, first_factor
from comms import bitmap, compact, lattice, quantise, sketch, sparse
from comms.collectives import AXIS

ROW, DENSITY, COPY = 500, 0.02, "copy"
SMALL = 10_000_000  # coordinates
BOTH = "int8, both of 2 workers"  # since a single one does not round
WORKERS = {BOTH: 2}  # in a call, where there are more than one
SEED = 7


def gradients(size: int, density: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return three gradients of `size` entries: sparse in rows, in coordinates, and dense."""
    rng = np.random.default_rng(0)
    rows, coordinates = np.zeros((size // ROW, ROW), np.float32), np.zeros(size, np.float32)
    for array in (rows, coordinates):
        chosen = rng.choice(len(array), int(len(array) * density), replace=False)
        array[chosen] = rng.standard_normal((len(chosen), *array.shape[1:]), np.float32)
    dense = rng.standard_normal((size // ROW, ROW), np.float32)
    return tuple(jnp.asarray(x) for x in (rows, coordinates, dense))


def _s2(x, rows: int, columns: int, decode=sketch.decode_at) -> jax.Array:
    table = sketch.encode(x, rows, columns, SEED)
    return decode(table, bitmap.pack(bitmap.occupied(x)), len(x), SEED)


def _on_a_lattice(rows, bits: int) -> jax.Array:
    """Encode and decode, met by a vector nearby."""
    side = lattice.side_for(jnp.full(len(rows), 0.2), bits)
    message, _ = lattice.encode(rows, side, bits)
    return lattice.decode(message, rows + 0.05, bits)


def _both(x, codec) -> jax.Array:
    def total(x):
        return quantise.two_phase_all_reduce(x, codec).total

    return jax.vmap(total, axis_name=AXIS)(jnp.stack([x, x]))


def _on_the_wire(x, codec) -> tuple[jax.Array, jax.Array]:
    """Return the message too, or the compiler would leave both conversions out."""
    message = codec.encode(x.reshape(1, -1), None)
    return message, codec.decode(message, x.size)


def candidates(size: int, density: float = DENSITY) -> dict[str, tuple[Callable, int]]:
    """Return calls that encode and decode once, and the bytes of their messages."""
    rows, coordinates, dense = gradients(size, density)
    busy, k = max(1, int(len(rows) * density)), max(1, int(size * density))
    key, words = jax.random.key(SEED), bitmap.payload_bytes
    q, int8 = first_factor(dense.shape, 4, key), quantise.int8_codec()

    def call(run, *args, **static):
        return functools.partial(jax.jit(functools.partial(run, **static)), *args)

    def alone(codec):
        """Return a collective of a single worker: its sums are copies."""
        return lambda *args: jax.vmap(codec, axis_name=AXIS)(*(a[None] for a in args))

    found = {COPY: (call(jnp.copy, dense), 4 * size)}
    kinds = {"rows": (rows, busy, (ROW,)), "coordinates": (coordinates, k, ())}
    for kind, (x, count, shape) in kinds.items():
        for r in (1, 5):
            found[f"S2, {kind}, r = {r}"] = (
                call(_s2, x, rows=r, columns=3 * count),
                words(len(x)) + sketch.payload_bytes(r, 3 * count, shape),
            )
        found[f"S2 peeled, {kind}, r = 3"] = (
            call(_s2, x, rows=3, columns=count, decode=sketch.recover),
            words(len(x)) + sketch.payload_bytes(3, count, shape),
        )
        found[f"bitmap, {kind}"] = (
            call(lambda x: bitmap.unpack(bitmap.pack(bitmap.occupied(x)), len(x)), x),
            words(len(x)),
        )
    for name, codec in (("bf16", quantise.BFLOAT16), ("fp16", quantise.FLOAT16)):
        found[f"{name}, as integers"] = (
            call(_on_the_wire, dense, codec=codec), codec.payload_bytes(size)
        )  # fmt: skip
    return found | {
        "exact union, rows": (
            call(alone(lambda x: compact.all_reduce(x, 2 * busy)[0]), rows),
            compact.payload_bytes(rows.shape, rows.dtype, 2 * busy),
        ),
        "top-k": (
            call(lambda x: sparse.decode(sparse.top_k(x, k, ordered=False), size), dense),
            sparse.payload_bytes(k, dense.dtype),
        ),
        "random-k": (
            call(lambda x: sparse.random_k_decode(sparse.random_k(x, k, key), size, key), dense),
            sparse.random_k_payload_bytes(k, dense.dtype),
        ),
        "QSGD, 4 bits": (
            call(lambda x: quantise.qsgd_decode(quantise.qsgd(x, 7, key), size, 7), dense),
            quantise.qsgd_payload_bytes(size, 7),
        ),
        "natural": (
            call(lambda x: quantise.natural_decode(quantise.natural(x, key)), dense),
            quantise.natural_payload_bytes(size),
        ),
        "sign": (
            call(lambda x: quantise.sign_decode(quantise.sign(x), size), dense),
            quantise.sign_payload_bytes(size),
        ),
        BOTH: (
            call(_both, dense, codec=int8), quantise.two_phase_bytes(size, 2, int8)
        ),
        "bf16": (
            call(lambda x: (x.astype(jnp.bfloat16), x.astype(jnp.bfloat16).astype(x.dtype)), dense),
            2 * size,
        ),
        "lattice, 8 bits": (
            call(_on_a_lattice, lattice.in_buckets(dense.ravel()), bits=8),
            lattice.payload_bytes(size, 8),
        ),
        "PowerSGD, rank 4": (
            call(alone(factored_all_reduce), dense, q),
            factor_bytes(dense.shape, 4),
        ),
    }  # fmt: skip
