"""S2 Reducer: row-sparse gradients all-reduced through a bitmap and a count-sketch.

K. Ge et al., *S2 Reducer: High-Performance Sparse Communication to Accelerate Distributed Deep
Learning*, arXiv 2110.02140. The gradient of an embedding table is zero except in the rows of the
mini-batch's words. The workers agree on the union of their rows by a bitmap, and all-reduce a
sketch of this union. Unlike lists of rows, bitmap and sketch keep their size for any number of
workers. A gradient with non-zeros scattered over its rows can be sketched element by element.

The paper estimates the sum of a row from its buckets. The bitmap names the other rows in these
buckets. So a sketch with several rows of buckets gives all sums without error (`peel`), if the
union fills at most 0.8 of the buckets. The bitmap also shows when peeling fails, or an estimate
would be mostly noise: then workers send exact values in place of the sketch. The records count
these updates (`fallbacks`, `fallback_share`), their bytes and their seconds.

The exact variant sends the agreed rows themselves, compacted into a budget of rows, or everything
if they do not fit. One step equals a step of all-reduce SGD. Without peeling, the estimate by one
row of buckets is unbiased, since every update has a new hash. All other parameters take part in a
dense mean.

Error feedback is optional for estimates, at a price: rows with a kept error are not zero, so that
the union of rows grows. To converge, a sketch then needs more columns than the union has rows.
"""

import math
from collections.abc import Callable

import optax

from algorithms import compression
from algorithms.all_reduce import all_reduce
from algorithms.base import Algorithm, choose, whole
from algorithms.mg_wfbp import mg_wfbp
from algorithms.row_sparse import (
    NOISE,
    budget_rows,
    capacities_dense,
    capacities_exact,
    cheaper_granularity,
    compacted,
    row_sparse,
    sketched,
    tables,
    undecided,
    with_tables_reduced,
)
from comms import sketch

AUTO, ELEMENT, ROW = GRANULARITIES = ("auto", "element", "row")
COLUMNS_PER_ROW = 3  # columns of an estimating sketch for every row expected in the union
PEELED = 0.85  # rows expected in the union, relative to the number that peeling resolves


def s2_reducer(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    granularity: str = ROW,
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
    """All-reduce row-sparse parameters through a bitmap and a sketch, then let `optimizer` step.

    sparse: paths, "module/kernel", of the row-sparse parameters; "auto": those whose path contains
        "embedding".
    granularity: unit of the sketch, a "row" or an "element". "auto": the first gradient decides
        before a run starts, see `cheaper_granularity`; the run records the decision.
    rows: of the sketch; an estimate is the median over them.
    peel: decode exactly, by subtracting rows that are alone in a bucket from their other buckets;
        false, or one row of the sketch: estimate everything, as the paper does.
    fallback: message if peeling cannot decode the union, or if an estimate's expected squared error
        is more than half of the error of sending nothing. "exact": the rows of the union, with room
        for at most twice as many; "dense": everything.
    ratio: size of the sketch, or of the exact variant's budget, relative to the table.
    budget: in place of ratio, the number of rows or elements expected in the union. For each, a
        peeled sketch of 3 rows has 1.44 buckets, and an estimating sketch has 3 columns.
    exact: send the rows of the union themselves. error_feedback: keep the errors of estimates.
    warmup_updates: number of updates at the start in which everything is all-reduced dense.
    buckets: all other parameters travel in buckets, as in `mg_wfbp` without a profile ("wfbp",
        "single", "fixed:SIZE"); None: all at once.
    weighting: as in `all_reduce`. seed: of the hashes, the same on all workers.

    Raises ValueError for an impossible size. At the latest once parameters are known, it raises
    ValueError if `sparse` names no parameter or an unknown one.
    """
    chosen = row_sparse("s2_reducer", sparse)
    budget_of = budget_rows("s2_reducer", ratio, budget)
    choose("granularity", dict.fromkeys(GRANULARITIES), granularity)
    capacities_of = choose(
        "fallback", {"dense": capacities_dense, "exact": capacities_exact}, fallback
    )
    whole("s2_reducer", 1, rows=rows)
    peel = peel and rows > 1
    if error_feedback and (exact or peel):
        raise ValueError(
            f"s2_reducer: {'the exact variant' if exact else 'peeling'} leaves nothing out; set "
            f"error_feedback or {'exact' if exact else 'peel'} to false"
        )
    if exact and (rows, peel, fallback) != (3, True, "exact"):
        raise ValueError(
            f"s2_reducer: rows={rows}, peel={peel} and fallback={fallback!r} are of a sketch, but "
            "the exact variant has none; leave them out, or exact"
        )
    columns_of = _columns_of(budget_of, rows, peel, expected=budget is not None)
    if exact:
        plain, carried = compacted(budget_of), budget_of
    else:
        plain = sketched(rows, columns_of, peel, capacities_of)
        carried = _carried(columns_of, rows, peel)
    reducer = plain
    if granularity == ELEMENT:
        reducer = compression.reshaped(plain, lambda entries: (entries,))
    reducer = compression.with_dense_warmup(reducer, warmup_updates)
    if error_feedback:
        reducer = compression.with_error_feedback(reducer)
    method = with_tables_reduced(
        "s2_reducer",
        optimizer,
        reducer,
        sparse,
        weighting,
        rest=all_reduce(optimizer) if buckets is None else mg_wfbp(optimizer, buckets=buckets),
        warmup_updates=warmup_updates,
        seed=seed,
    )
    if granularity != AUTO:
        return method

    def decide(gradient):
        return {"granularity": cheaper_granularity(tables(gradient, chosen), plain, carried)}

    return undecided(method, decide)


def _columns_of(
    budget_of: Callable[[int], int], rows: int, peel: bool, expected: bool
) -> Callable[[int], int]:
    """Return: rows of a table -> columns of its sketch; expected: the budget counts union rows."""
    if not expected:
        return lambda n: max(1, budget_of(n) // rows)
    if not peel:
        return lambda n: max(1, COLUMNS_PER_ROW * budget_of(n))
    load = PEELED * sketch.peeling_load(rows)
    return lambda n: max(1, math.ceil(budget_of(n) / load / rows))


def _carried(columns_of: Callable[[int], int], rows: int, peel: bool) -> Callable[[int], int]:
    """Return: rows of a table -> rows of a union that its sketch nearly always carries."""
    if peel:
        load = PEELED * sketch.peeling_load(rows)
        return lambda n: int(load * rows * columns_of(n))
    return lambda n: sketch.entries_within(NOISE, rows, columns_of(n))
