"""S2 Reducer: row-sparse gradients all-reduced through a bitmap and a count-sketch.

K. Ge et al., *S2 Reducer: High-Performance Sparse Communication to Accelerate Distributed Deep
Learning*, arXiv 2110.02140. The gradient of an embedding table is zero but in the rows of the words
at hand. The workers agree by a bitmap on the rows that some of them have, and all-reduce a sketch
of these; unlike lists of rows, both keep their size however many workers there are. A gradient
whose non-zeros are scattered over its rows is sketched element by element instead.

The paper estimates the sum of a row from its buckets. Since the bitmap says who else is in them, of
a sketch with several rows of buckets all is found without error (`peel`), while the union fills at
most 0.8 of the buckets. Workers know from the bitmap when that fails, or when an estimate would be
mostly noise, and send something exact in place of the sketch. The records count these updates
(`fallbacks`, `fallback_share`), their bytes and their seconds.

The exact variant sends the agreed rows themselves, compacted into a budget of rows, and everything
where they do not fit. It is one step of all-reduce SGD. Without peeling a sketch's estimate is
unbiased with one row of buckets, since the hash is a new one in every update. All other parameters
take part in a dense mean.

Error feedback is an option of the estimate with a price: what was left out is not zero any more, so
that the union of rows grows; a sketch must have more columns than the union has rows for that to
converge.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import compression
from algorithms.all_reduce import all_reduce
from algorithms.base import AXIS, Algorithm, choose
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer
from algorithms.mg_wfbp import mg_wfbp
from algorithms.row_sparse import (
    budget_rows,
    row_bytes,
    row_sparse,
    tables,
    undecided,
    with_known_paths,
)
from comms import bitmap, compact, sketch, sketch_error
from comms.messages import Payload

ROW, ELEMENT, AUTO = GRANULARITIES = ("row", "element", "auto")
COLUMNS_PER_ROW = 3  # columns of an estimating sketch for every row expected in the union
PEELED_LOAD = 0.7  # rows expected in the union, relative to the buckets of a sketch that is peeled
NOISE = 0.5**0.5  # the largest error of an estimate, relative to that of sending nothing


def capacities_dense(rows: int, buckets: int) -> tuple[int, ...]:
    """No capacity: a union that a sketch cannot carry makes the workers send everything."""
    del rows, buckets
    return ()


def capacities_exact(rows: int, buckets: int) -> tuple[int, ...]:
    """Rows that fit in each message of the fallback: doubling, so that at most half is unused."""
    found, capacity = [], buckets
    while capacity < rows:
        found.append(capacity)
        capacity *= 2
    return tuple(found)


def sketched(
    rows: int,
    columns_of: Callable[[int], int],
    peel: bool,
    capacities_of: Callable[[int, int], tuple[int, ...]],
) -> Reducer:
    """Sum of the non-zero rows of an array [n, ...], found in a sketch, or else sent themselves.

    rows: of the sketch; columns_of: n -> columns of the sketch; peel: see `s2_reducer`;
    capacities_of: (n, buckets) -> rows that fit in the messages of the fallback, rising.
    """

    def capacities(n):
        return capacities_of(n, rows * columns_of(n))

    def planned(words, n, draw):
        """(seed, rows of the union that a sketch with it would not carry)."""
        seed, columns = jax.random.bits(draw.shared, (), jnp.uint32), columns_of(n)
        if peel:
            return sketch.resolving_seed(words, rows, columns, n, seed)
        count = bitmap.count(words)
        return seed, jnp.where(count > sketch_error.entries_within(NOISE, rows, columns), count, 0)

    def reduce(x, state, draw):
        words = bitmap.union(bitmap.pack(bitmap.occupied(x)), AXIS)
        seed, unresolved = planned(words, len(x), draw)
        decode = sketch.recover if peel else sketch.decode_at

        def estimated(x):
            table = sketch.all_reduce(sketch.encode(x, rows, columns_of(len(x)), seed), AXIS)
            return decode(table, words, len(x), seed)

        chosen = sum(
            (bitmap.count(words) > capacity for capacity in capacities(len(x))), jnp.int32(1)
        )
        chosen = jnp.where(unresolved > 0, chosen, 0)
        branches = [
            estimated,
            *(_rows_sent(words, capacity) for capacity in capacities(len(x))),
            lambda x: compact.dense_sum(x, chosen > 0, AXIS),
        ]
        total = _first_that_fits(branches, chosen, x)
        sent = x if peel else jnp.where(chosen > 0, x, compression.even_share(total, draw))
        return total, sent, compression.count_fallback(state, chosen, unresolved)

    def payload(leaf, workers, update):
        size = sketch.payload_bytes(rows, columns_of(leaf.shape[0]), leaf.shape[1:])
        return Payload((bitmap.payload_bytes(leaf.shape[0]), size))

    def instead(leaf, workers):
        n, agreement = leaf.shape[0], bitmap.payload_bytes(leaf.shape[0])
        sizes = (capacity * row_bytes(leaf.shape) for capacity in (*capacities(n), n))
        return tuple((Payload((agreement, size)),) for size in sizes)

    def init(leaf):
        return compression.no_fallbacks(1 + len(capacities(leaf.shape[0])))

    return Reducer(init, reduce, payload, instead=instead)


def _rows_sent(words, capacity: int) -> Callable:
    return lambda x: compact.sum_of_rows(x, words, capacity, AXIS)


def _first_that_fits(branches, chosen, x):
    """branches[chosen](x), as conditions in each other: the next one is where this does not fit."""
    first, *others = branches
    if not others:
        return first(x)
    return jax.lax.cond(chosen > 0, lambda x: _first_that_fits(others, chosen - 1, x), first, x)


def compacted(budget_of: Callable[[int], int]) -> Reducer:
    """Sum of the non-zero rows of an array [n, ...], in a budget of rows or else dense.

    budget_of: n -> rows that fit.
    """

    def sizes(leaf, rows):
        return Payload((bitmap.payload_bytes(leaf.shape[0]), rows * row_bytes(leaf.shape)))

    def payload(leaf, workers, update):
        return sizes(leaf, budget_of(leaf.shape[0]))

    def reduce(x, state, draw):
        words, budget = bitmap.union(bitmap.pack(bitmap.occupied(x)), AXIS), budget_of(len(x))
        total, fell_back = compact.sum_within(x, words, budget, AXIS)
        left = jnp.maximum(bitmap.count(words) - budget, 0)
        return total, x, compression.count_fallback(state, fell_back.astype(jnp.int32), left)

    return Reducer(
        lambda leaf: compression.no_fallbacks(1),
        reduce,
        payload,
        instead=lambda leaf, workers: ((sizes(leaf, leaf.shape[0]),),),
    )


def s2_reducer(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    granularity: str = "row",
    rows: int = 3,
    peel: bool = True,
    fallback: str = "exact",
    ratio: float | None = None,
    exact: bool = False,
    budget: int | None = None,
    error_feedback: bool = False,
    warmup_updates: int = 0,
    buckets: str | None = None,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce what is row-sparse through a bitmap and a sketch, then let `optimizer` step.

    sparse: paths, "module/kernel", of the row-sparse parameters; "auto": those whose path contains
        "embedding".
    granularity: what is sketched, a "row" or every "element" by itself. "auto": left to a gradient,
        see `cheaper_granularity`; a run decides before it starts and records it.
    rows: of the sketch; an estimate is the median over them.
    peel: take what is alone in a bucket out of the others, which is exact; false, or one row:
        estimate everything, as the paper does.
    fallback: what is sent where that cannot find the union, or an estimate has an expected squared
        error of more than half of that of sending nothing. "exact": the rows of the union, with
        room for at most twice as many; "dense": everything.
    ratio: size of the sketch, or of the exact variant's budget, relative to the table.
    budget: instead, the rows or elements expected in the union. A sketch that is peeled gets a
        bucket for 0.7 of them, one that estimates 3 columns for each.
    exact: send the rows of the union themselves.
    warmup_updates: the first so many are all-reduced dense.
    buckets: all other parameters travel in buckets, as in `mg_wfbp` without a profile ("wfbp",
        "single", "fixed:SIZE"); None: all at once.
    weighting: as in `all_reduce`. seed: of the hashes, the same on all workers.

    Raises ValueError for a size that cannot be, and, at the latest when it sees the parameters,
    where none or an unknown one is said to be sparse.
    """
    chosen = row_sparse("s2_reducer", sparse)
    budget_of = budget_rows("s2_reducer", ratio, budget)
    choose("granularity", dict.fromkeys(GRANULARITIES), granularity)
    capacities_of = choose(
        "fallback", {"dense": capacities_dense, "exact": capacities_exact}, fallback
    )
    if rows < 1:
        raise ValueError(
            f"s2_reducer: needs 1 row of a sketch or more, got {rows}; 1 or 3 are usual"
        )
    peel, expected = peel and rows > 1, budget is not None
    if error_feedback and (exact or peel):
        raise ValueError(
            f"s2_reducer: {'the exact variant' if exact else 'peeling'} leaves nothing out; set "
            f"error_feedback or {'exact' if exact else 'peel'} to false"
        )
    if exact:
        reducer, carried = compacted(budget_of), budget_of
    else:
        columns_of = _columns_of(budget_of, rows, peel, expected)
        reducer = sketched(rows, columns_of, peel, capacities_of)
        carried = _carried(columns_of, rows, peel)
    plain = reducer
    if granularity == ELEMENT:
        reducer = compression.of_elements(reducer)
    reducer = compression.with_dense_warmup(reducer, warmup_updates)
    if error_feedback:
        reducer = compression.with_error_feedback(reducer)
    rest = all_reduce(optimizer) if buckets is None else mg_wfbp(optimizer, buckets=buckets)
    method = compressed(
        "s2_reducer",
        optimizer,
        lambda path, leaf: reducer if chosen(path) and leaf.ndim else None,
        rest=rest,
        warmup_updates=warmup_updates,
        weighting=weighting,
        seed=seed,
    )
    method = with_known_paths("s2_reducer", sparse, method)
    if granularity != AUTO:
        return method

    def decide(gradient):
        return {"granularity": cheaper_granularity(tables(gradient, chosen), plain, carried)}

    return undecided(method, decide)


def cheaper_granularity(arrays, reducer: Reducer, carried: Callable[[int], int]) -> str:
    """By which of "row" and "element" a reducer sends less of the arrays [n, ...], together.

    carried: n -> how many of n rows, or elements, are sent as planned. A union that is larger goes
    by the smallest alternative that holds it.
    """

    def size(array) -> int:
        union = int((array != 0).reshape(len(array), -1).any(axis=1).sum())
        if union <= carried(len(array)):
            return reducer.payload(array, 1, 0).size
        needed = union * row_bytes(array.shape)
        return next(
            payload.size
            for (payload,) in reducer.instead(array, 1)
            if payload.reduced[-1] >= needed
        )

    arrays = [np.asarray(array) for array in arrays]
    by_row = sum(size(array) for array in arrays)
    by_element = sum(size(array.ravel()) for array in arrays)
    return ROW if by_row <= by_element else ELEMENT


def _columns_of(
    budget_of: Callable[[int], int], rows: int, peel: bool, expected: bool
) -> Callable[[int], int]:
    """n -> columns of a sketch of n rows; expected: the budget is a number of rows of a union."""
    if not expected:
        return lambda n: max(1, budget_of(n) // rows)
    if not peel:
        return lambda n: COLUMNS_PER_ROW * budget_of(n)
    return lambda n: math.ceil(budget_of(n) / PEELED_LOAD / rows)


def _carried(columns_of: Callable[[int], int], rows: int, peel: bool) -> Callable[[int], int]:
    """n -> rows of a union that a sketch of n rows carries; of one that is peeled, nearly always"""
    if peel:
        return lambda n: int(PEELED_LOAD * rows * columns_of(n))
    return lambda n: sketch_error.entries_within(NOISE, rows, columns_of(n))
