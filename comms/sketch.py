"""Count-sketch of sparse vectors and of row-sparse matrices: linear, so that it can be all-reduced.

Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; together with
a bitmap it is the codec of S2 Reducer (Ge et al., arXiv 2110.02140):

    words = bitmap.union(bitmap.pack(bitmap.occupied(x)))
    total = decode_at(all_reduce(encode(x, rows, columns, seed)), words, len(x), seed)

`recover` in place of `decode_at` learns from the bitmap which entries share a bucket, and leaves
inseparable entries at 0. The bitmap and the seed alone determine the inseparable entries, so that
workers can know them before anything else is sent (`resolving_seed`).

Only non-zeros are touched. With one row an estimate is unbiased with variance about
(||x||^2 - x_i^2) / columns; with 5 rows of 3 columns per non-zero nearly all are exact. Values
are of any float dtype, sketches and estimates float32. A NaN comes back as NaN, together with all
entries that share a bucket with it; so does the sum of opposite infinities.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from comms import bitmap, hashing
from comms.collectives import AXIS

SEEDS = 8  # tries for a seed that separates all entries


def encode(x, rows: int, columns: int, seed) -> jax.Array:
    """Return the sketch [rows, columns, ...] of x [n], or of x [n, ...] by whole rows.

    Seed: whole number in [0, 2^32), may be traced, the same on all workers. Raises ValueError
    without a row or a column.
    """
    if rows < 1 or columns < 1:
        raise ValueError(
            f"sketch: needs rows and columns >= 1, got {rows} and {columns}; use 1 row and 3 "
            "columns per expected non-zero"
        )

    x = jnp.asarray(x)

    def add(position, table):
        values = x.at[position].get(mode="fill", fill_value=0).astype(jnp.float32)
        row, bucket, sign = _hashes(position, rows, columns, seed, values.ndim)
        return table.at[row, bucket].add(sign * values[None])

    table = _zeros((rows, columns, *x.shape[1:]), x)
    return bitmap.fold(bitmap.pack(bitmap.occupied(x)), add, table, _slots(len(x)))


def all_reduce(sketch, axis: str = AXIS) -> jax.Array:
    """Sum the workers' sketches: the sketch of the sum of their vectors."""
    return jax.lax.psum(sketch, axis)


def decode(sketch, size: int, seed) -> jax.Array:
    """Estimate all entries, float32 [size] or [size, ...]: median over rows of sign x bucket."""
    return _estimate(sketch, jnp.arange(size, dtype=jnp.int32), seed)


def decode_at(sketch, words, size: int, seed) -> jax.Array:
    """Estimate entries where the bitmap is set, exactly 0 elsewhere: float32 [size] or [size, ...].

    words: uint32 [ceil(size / 32)], as `bitmap.pack` makes them of a mask.
    """

    def fill(position, out):
        return out.at[position].set(
            _estimate(sketch, position, seed), mode="drop", indices_are_sorted=True
        )

    out = _zeros((size, *sketch.shape[2:]), sketch, words)
    return bitmap.fold(words, fill, out, _slots(size))


def recover(sketch, words, size: int, seed) -> jax.Array:
    """Decode as `decode_at`, but exact to rounding where entries can be separated, and 0 elsewhere.

    The bitmap says which entries share a bucket. An entry that is alone in any of its buckets is
    read there and taken out of its other buckets, which may leave further ones alone: peeling, M.
    Goodrich, M. Mitzenmacher, "Invertible Bloom lookup tables", arXiv 1101.2245. `unresolved` finds
    the remaining entries, without a sketch.
    """
    rows, columns = sketch.shape[:2]

    def peel(carry):
        table, left, out, _ = carry
        held = _held(left, rows, columns, size, seed)

        def take(position, carry):
            rest, out, taken = carry
            row, bucket, sign = _hashes(position, rows, columns, seed, table.ndim - 1)
            alone = (held[row, bucket] == 1) & (position < size)[None]
            found, where = alone.any(axis=0), alone.argmax(axis=0)
            nth = jnp.arange(len(position))
            value = sign[where, nth] * table[where, bucket[where, nth]]
            value = jnp.where(found.reshape(-1, *[1] * (value.ndim - 1)), value, 0)
            return (
                rest.at[row, bucket].add(-sign * value[None]),
                out.at[jnp.where(found, position, size)].set(value, mode="drop"),
                _with_bits(taken, position, found),
            )

        start = table, out, left ^ left  # zeros, of shard_map's type for the loop
        rest, out, taken = bitmap.fold(left, take, start, _slots(size))
        return rest, left ^ taken, out, taken.any()

    varying = _zeros((), words)
    out = _zeros((size, *sketch.shape[2:]), sketch, words)
    start = sketch + varying, words, out, bitmap.count(words) > 0
    return jax.lax.while_loop(lambda carry: carry[3], peel, start)[2]


def unresolved(words, rows: int, columns: int, size: int, seed) -> jax.Array:
    """Return words of the entries of a bitmap that `recover` leaves at 0, whatever the values are.

    There are nearly always none if a sketch of 3 rows has many entries, but at most 0.81 per
    bucket (`peeling_load`). Entries that share all their buckets are never recovered, whatever the
    load: see `resolving_seed`.
    """

    def peel(carry):
        left, _ = carry
        held = _held(left, rows, columns, size, seed)

        def take(position, taken):
            row, bucket, _ = _hashes(position, rows, columns, seed, 1)
            alone = ((held[row, bucket] == 1) & (position < size)[None]).any(axis=0)
            return _with_bits(taken, position, alone)

        taken = bitmap.fold(left, take, left ^ left, _slots(size))
        return left ^ taken, taken.any()

    return jax.lax.while_loop(lambda carry: carry[1], peel, (words, bitmap.count(words) > 0))[0]


def resolving_seed(words, rows: int, columns: int, size: int, seed) -> tuple[jax.Array, jax.Array]:
    """Find the first of `SEEDS` seeds from `seed` on by which peeling resolves all entries.

    Workers with the same bitmap find the same seed without a message. Returns (seed, number of
    entries that are left, int32): if no seed resolves all, the last seed and its number, or `seed`
    itself if there are more entries than buckets.
    """
    entries, seed = bitmap.count(words), jnp.uint32(seed)
    trials = jnp.where(entries > rows * columns, 1, SEEDS)

    def one_more(carry):
        trial, _ = carry
        rest = unresolved(words, rows, columns, size, seed + trial.astype(jnp.uint32))
        return trial + 1, bitmap.count(rest)

    trial, left = jax.lax.while_loop(
        lambda carry: (carry[1] > 0) & (carry[0] < trials),
        one_more,
        (jnp.int32(0) * trials, entries),
    )
    return seed + jnp.maximum(trial - 1, 0).astype(jnp.uint32), left


def payload_bytes(rows: int, columns: int, row_shape: tuple[int, ...] = ()) -> int:
    """Return the bytes of a sketch, an all-reduce's payload of float32; row_shape: shape of x[i].

        >>> payload_bytes(3, 100)
        1200
    """
    return 4 * rows * columns * math.prod(row_shape)


def _held(words, rows: int, columns: int, size: int, seed):
    """Count the entries of the bitmap in every bucket, float32 [rows, columns]."""

    def count(position, held):
        row, bucket, _ = _hashes(position, rows, columns, seed, 1)
        return held.at[row, bucket].add(jnp.float32(position < size)[None])

    return bitmap.fold(words, count, _zeros((rows, columns), words), _slots(size))


def _with_bits(words, position, chosen):
    """Return words [w] with the bits of the chosen ones of k distinct positions set."""
    bit = jnp.uint32(1) << (position % 32).astype(jnp.uint32)
    return words.at[position // 32].add(jnp.where(chosen, bit, 0), mode="drop")


def _hashes(position, rows: int, columns: int, seed, ndim: int):
    """Return row [rows, 1], bucket [rows, k] and sign [rows, k, 1, ...], with ndim - 1 ones."""
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    seeds = hashing.mix(row, seed)
    bucket = hashing.bucket(position[None], seeds, columns)
    sign = hashing.sign(position[None], seeds)
    return row, bucket, sign.reshape(*sign.shape, *[1] * (ndim - 1))


def _estimate(sketch, position, seed):
    """Return the median over the rows of the positions' signed buckets."""
    rows, columns = sketch.shape[:2]
    row, bucket, sign = _hashes(position, rows, columns, seed, sketch.ndim - 1)
    return _median(list(sign * sketch[row, bucket]))


def _median(values):
    """Return the element-wise median of a few arrays, NaN where any is, by minima and maxima.

    XLA sorts along an axis through a comparator, many times slower for a handful of rows.
    """
    last = len(values) - 1
    for start in range(len(values)):  # odd-even transposition sort
        for i in range(start % 2, last, 2):
            low, high = values[i], values[i + 1]
            values[i], values[i + 1] = jnp.minimum(low, high), jnp.maximum(low, high)
    # Equal infinities must not be averaged into NaN, nor large values into infinity.
    low, high = values[last // 2], values[(last + 1) // 2]
    return low if last % 2 == 0 else 0.5 * low + 0.5 * high


def _slots(size: int) -> int:
    """Return the number of non-zeros handled at once: few passes, little waste in the last one."""
    return min(size, max(1024, -(-size // 32)))


def _zeros(shape, *like):
    """Return float32 zeros that vary over the mesh as the arrays `like`, for a loop's carry."""
    zero = sum(x.ravel()[:0].sum().astype(jnp.float32) for x in like)
    return jnp.full(shape, zero, jnp.float32)


@functools.cache
def estimate_error(entries: int, rows: int, columns: int) -> float:
    """Return the root mean square error of `sketch.decode_at`, relative to estimating 0 everywhere.

    The noise in a bucket is the sum of the K other entries in it, K binomial: for one row the
    error is sqrt((entries - 1) / columns), for any values. The median of an odd number r of rows
    exceeds t where more than half of their noises do; the mean of its square is the integral of
    2 t P(|median| > t). An even number of rows gets the error of one row fewer, which is too large.
    """
    rows -= rows % 2 == 0
    if entries <= 1:
        return 0.0
    if rows == 1:
        return math.sqrt((entries - 1) / columns)
    mean = (entries - 1) / columns
    most = int(mean + 12 * math.sqrt(mean) + 12)
    others = np.arange(1, min(most, entries - 1) + 1)
    share = _binomial(others, entries - 1, 1 / columns)  # of buckets with that many others
    t = np.linspace(0, 12 * math.sqrt(most), 4001)
    above = (share[:, None] * scipy.special.ndtr(-t[None] / np.sqrt(others)[:, None])).sum(0)
    tail = 2 * scipy.special.bdtrc(rows // 2, rows, above)  # probability of both signs
    return math.sqrt(np.trapezoid(2 * t * tail, t))


def _binomial(k: np.ndarray, n: int, share: float) -> np.ndarray:
    """Return P(K = k) for K binomial of n, 1 <= k <= n.

    The method is the same as in scipy.stats, whose import takes a second.
    """
    ways = -np.log(n + 1.0) - scipy.special.betaln(n - k + 1.0, k + 1.0)
    return np.exp(ways + scipy.special.xlogy(k, share) + scipy.special.xlog1py(n - k, -share))


@functools.cache
def peeling_load(rows: int) -> float:
    """Return the entries per bucket up to which peeling nearly always finds all entries.

    The minimum over x of x / (r (1 - exp(-x))^(r - 1)) for r rows of buckets: threshold of the
    2-core of random r-uniform hypergraphs (M. Molloy, "Cores in random hypergraphs", 2005; arXiv
    1101.2245, Table 1, has its reciprocals). One row resolves no two entries for sure: 0.

        >>> round(peeling_load(3), 3)
        0.818
    """
    if rows == 1:
        return 0.0
    found = scipy.optimize.minimize_scalar(
        lambda x: x / (rows * (-math.expm1(-x)) ** (rows - 1)), bounds=(1e-9, 20), method="bounded"
    )
    return float(found.fun)


@functools.cache
def entries_within(error: float, rows: int, columns: int) -> int:
    """Return the largest number of entries for which `estimate_error` is at most `error`."""
    low, high = 1, 2
    while estimate_error(high, rows, columns) <= error:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if estimate_error(middle, rows, columns) <= error else (low, middle)
        )
    return low
