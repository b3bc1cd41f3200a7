"""Count-sketch of sparse vectors and of row-sparse matrices: linear, so that it can be all-reduced.

Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; together with
a bitmap it is the codec of S2 Reducer (Ge et al., arXiv 2110.02140):

    words = bitmap.union(bitmap.pack(bitmap.occupied(x)))
    total = decode_at(all_reduce(encode(x, rows, columns, seed)), words, len(x), seed)

`recover` in place of `decode_at` uses that the bitmap says which entries share a bucket.

Only non-zeros are touched. With one row an estimate is unbiased with variance about
(||x||^2 - x_i^2) / columns; with 5 rows of 3 columns per non-zero nearly all are exact. Values
are of any float dtype, sketches and estimates float32. A NaN comes back as NaN, together with all
entries that share a bucket with it; so does the sum of opposite infinities.
"""

import jax
import jax.numpy as jnp

from comms import bitmap, hashing


def encode(x, rows: int, columns: int, seed) -> jax.Array:
    """Sketch [rows, columns, ...] of x [n] or of its rows x [n, ...], every row added whole.

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


def all_reduce(sketch, axis="workers") -> jax.Array:
    """Sum of the workers' sketches: the sketch of the sum of their vectors."""
    return jax.lax.psum(sketch, axis)


def decode(sketch, size: int, seed) -> jax.Array:
    """Estimates, float32 [size] or [size, ...], of all entries: sign x bucket, median over rows."""
    return _estimate(sketch, jnp.arange(size, dtype=jnp.int32), seed)


def decode_at(sketch, words, size: int, seed) -> jax.Array:
    """Estimates where the bitmap is set, exactly 0 elsewhere: float32 [size] or [size, ...].

    words: uint32 [ceil(size / 32)], as ``bitmap.pack`` makes them of a mask.
    """
    return _fill(_zeros((size, *sketch.shape[2:]), sketch, words), sketch, words, seed)


def recover(sketch, words, size: int, seed) -> jax.Array:
    """As ``decode_at``, but exact to rounding for all entries that can be told apart.

    The bitmap says which entries share a bucket. One that is alone in any of its buckets is read
    there and taken out of the others, where it leaves further entries alone: peeling, M. Goodrich,
    M. Mitzenmacher, "Invertible Bloom lookup tables", arXiv 1101.2245. Nearly always that finds
    all of many entries, if there are more than 1.23 buckets for each in a sketch of 3 rows (1.30
    with 4 rows, 1.43 with 5, Table 1 there). What is left then, and a single row, is estimated.
    """
    rows, columns = sketch.shape[:2]
    if rows == 1:  # an entry alone in its only bucket is in nobody's way
        return decode_at(sketch, words, size, seed)

    def count(position, held):
        row, bucket, _ = _hashes(position, rows, columns, seed, 1)
        return held.at[row, bucket].add(jnp.float32(position < size)[None])

    def peel(carry):
        table, left, out, _ = carry
        held = bitmap.fold(left, count, _zeros((rows, columns), left), _slots(size))

        def take(position, carry):
            rest, out, taken = carry
            row, bucket, sign = _hashes(position, rows, columns, seed, table.ndim - 1)
            alone = (held[row, bucket] == 1) & (position < size)[None]
            found, where = alone.any(axis=0), alone.argmax(axis=0)
            nth = jnp.arange(len(position))
            value = sign[where, nth] * table[where, bucket[where, nth]]
            value = jnp.where(found.reshape(-1, *[1] * (value.ndim - 1)), value, 0)
            bit = jnp.uint32(1) << (position % 32).astype(jnp.uint32)
            return (
                rest.at[row, bucket].add(-sign * value[None]),
                out.at[jnp.where(found, position, size)].set(value, mode="drop"),
                taken.at[position // 32].add(jnp.where(found, bit, 0), mode="drop"),
            )

        start = table, out, left ^ left  # zeros, of the type that shard_map wants
        rest, out, taken = bitmap.fold(left, take, start, _slots(size))
        return rest, left ^ taken, out, taken.any()

    varying = _zeros((), words)
    out = _zeros((size, *sketch.shape[2:]), sketch, words)
    start = sketch + varying, words, out, bitmap.count(words) > 0
    rest, left, out, _ = jax.lax.while_loop(lambda carry: carry[3], peel, start)
    return _fill(out, rest, left, seed)


def payload_bytes(rows: int, columns: int, row_shape: tuple[int, ...] = ()) -> int:
    """Bytes of a sketch, an all-reduce's payload of float32; row_shape: that of x[i]."""
    elements = rows * columns
    for length in row_shape:
        elements *= length
    return 4 * elements


def _hashes(position, rows: int, columns: int, seed, ndim: int):
    """Row [rows, 1], bucket and sign [rows, k] of k positions, the signs for values of k x ..."""
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    seeds = hashing.mix(row, seed)
    bucket = hashing.bucket(position[None], seeds, columns)
    sign = hashing.sign(position[None], seeds)
    return row, bucket, sign.reshape(*sign.shape, *[1] * (ndim - 1))


def _estimate(sketch, position, seed):
    """Median over the rows of the positions' signed buckets."""
    rows, columns = sketch.shape[:2]
    row, bucket, sign = _hashes(position, rows, columns, seed, sketch.ndim - 1)
    return _median(list(sign * sketch[row, bucket]))


def _fill(out, sketch, words, seed):
    """`out` [size, ...] with estimates where the bitmap is set."""

    def fill(position, out):
        return out.at[position].set(
            _estimate(sketch, position, seed), mode="drop", indices_are_sorted=True
        )

    return bitmap.fold(words, fill, out, _slots(len(out)))


def _median(values):
    """Element-wise median of a few arrays, NaN where any is: a network of minima and maxima.

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
    """Non-zeros handled at once: few passes over a sparse vector, little waste in the last one."""
    return min(size, max(1024, -(-size // 32)))


def _zeros(shape, *like):
    """Float32 zeros that vary over the mesh as the arrays `like` do, as a loop's carry must."""
    zero = sum(x.ravel()[:0].sum().astype(jnp.float32) for x in like)
    return jnp.full(shape, zero, jnp.float32)
