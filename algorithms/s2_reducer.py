"""S2 Reducer: row-sparse gradients all-reduced through a bitmap and a count-sketch.

K. Ge et al., *S2 Reducer: High-Performance Sparse Communication to Accelerate Distributed Deep
Learning*, arXiv 2110.02140. The gradient of an embedding table is zero but in the rows of the words
at hand. The workers agree by a bitmap on the rows that some of them have, and all-reduce a sketch
of these; unlike lists of rows, both keep their size however many workers there are.
The paper estimates the sum of a row from its buckets. Since the bitmap says who else is in them, of
a sketch with several rows of buckets nearly all is found without error (`peel`).

The exact variant sends the agreed rows themselves, compacted into a budget of rows, and everything
where they do not fit, which the metrics `fallbacks` and `fallback_bytes` count. It is one step of
all-reduce SGD. A sketch's estimate is unbiased with one row of buckets, since the hash is a new one
in every update. All other parameters take part in a dense mean.

Error feedback is an option with a price: what was left out is not zero any more, so that the union
of rows grows; a sketch must have more columns than the union has rows for that to converge.
"""

import fnmatch
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.all_reduce import all_reduce
from algorithms.base import AXIS, Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer
from algorithms.mg_wfbp import mg_wfbp
from comms import bitmap, compact, sketch
from comms.messages import Payload

DEFAULT_RATIO = 0.18  # of a table's rows: 82 % less is sent
COLUMNS_PER_ROW = 3  # columns of a sketch for every row that is expected in the union


def sketched(rows: int, columns_of: Callable[[int], int], decode: Callable) -> Reducer:
    """Sum of the non-zero rows of an array [n, ...], found in a sketch.

    rows: of the sketch; columns_of: n -> columns of the sketch; decode: as `sketch.decode_at`.
    """

    def reduce(x, state, draw):
        seed = jax.random.bits(draw.shared, (), jnp.uint32)
        words = bitmap.union(bitmap.pack(bitmap.occupied(x)), AXIS)
        table = sketch.all_reduce(sketch.encode(x, rows, columns_of(len(x)), seed), AXIS)
        total = decode(table, words, len(x), seed)
        return total, compression.even_share(total, draw), state

    def payload(leaf, workers, update):
        size = sketch.payload_bytes(rows, columns_of(leaf.shape[0]), leaf.shape[1:])
        return Payload((bitmap.payload_bytes(leaf.shape[0]), size))

    return Reducer(lambda leaf: (), reduce, payload)


def compacted(budget_of: Callable[[int], int]) -> Reducer:
    """Sum of the non-zero rows of an array [n, ...], in a budget of rows or else dense.

    budget_of: n -> rows that fit.
    """

    def payload(leaf, workers, update):
        rows = bitmap.payload_bytes(leaf.shape[0])
        budget = budget_of(leaf.shape[0])
        return Payload((rows, compact.payload_bytes(leaf.shape, jnp.float32, budget) - rows))

    def reduce(x, state, draw):
        total, fell_back = compact.all_reduce(x, budget_of(len(x)), AXIS)
        sent = payload(x, jax.lax.axis_size(AXIS), 0)
        return total, x, compression.count_fallback(state, fell_back, sent, x.size)

    return Reducer(compression.no_fallbacks, reduce, payload)


def s2_reducer(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    rows: int = 1,
    peel: bool = True,
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
    rows: of the sketch; an estimate is the median over them.
    peel: read what is alone in a bucket first, which with 3 rows finds nearly all of a union of up
        to 0.8 of the buckets; false: estimate everything, as the paper does.
    ratio: size of the sketch, or of the exact variant's budget, relative to the table.
    budget: instead, the rows expected in the union; the sketch gets 3 columns for each.
    exact: send the rows of the union themselves.
    warmup_updates: the first so many are all-reduced dense.
    buckets: all other parameters travel in buckets, as in `mg_wfbp` without a profile ("wfbp",
        "single", "fixed:SIZE"); None: all at once.
    weighting: as in `all_reduce`. seed: of the hashes, the same on all workers.

    Raises ValueError for a size that cannot be, and, at the latest when it sees the parameters,
    where none or an unknown one is said to be sparse.
    """
    chosen = row_sparse("s2_reducer", sparse)
    rows_of = budget_rows("s2_reducer", ratio, budget)
    if rows < 1:
        raise ValueError(
            f"s2_reducer: needs 1 row of a sketch or more, got {rows}; 1 or 3 are usual"
        )
    if exact and error_feedback:
        raise ValueError(
            "s2_reducer: the exact variant leaves nothing out; set error_feedback or exact to false"
        )
    if exact:
        reducer = compacted(rows_of)
    else:
        per_row = 1 if budget is None else COLUMNS_PER_ROW * rows
        reducer = sketched(
            rows,
            lambda n: max(1, per_row * rows_of(n) // rows),
            sketch.recover if peel else sketch.decode_at,
        )
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
    return with_known_paths("s2_reducer", sparse, method)


def row_sparse(method: str, sparse: tuple[str, ...] | str) -> Callable[[str], bool]:
    """path -> whether this parameter is row-sparse; see `s2_reducer`."""
    if sparse == "auto":
        return lambda path: "embedding" in path
    if isinstance(sparse, str) or not sparse:
        raise ValueError(
            f"{method}: no parameter is said to be row-sparse, got sparse={sparse!r}; use "
            "all_reduce, a task with embedding tables, or a tuple of paths"
        )
    return lambda path: path in sparse


def with_known_paths(method: str, sparse: tuple[str, ...] | str, algorithm: Algorithm) -> Algorithm:
    """Let the exchange refuse parameters among which a row-sparse one is missing."""

    def init_fn(params):
        paths = [
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, _ in jax.tree_util.tree_leaves_with_path(params)
        ]
        wanted = ["*embedding*"] if sparse == "auto" else sparse
        missing = [name for name in wanted if not fnmatch.filter(paths, name)]
        if missing:
            raise ValueError(
                f"{method}: the model has no parameter {missing[0]!r} that could be row-sparse; "
                f"set sparse to some of {', '.join(paths)}"
            )
        return algorithm.exchange.init(params)

    exchange = optax.GradientTransformationExtraArgs(init_fn, algorithm.exchange.update)
    return algorithm._replace(exchange=exchange)


def budget_rows(method: str, ratio: float | None, budget: int | None) -> Callable[[int], int]:
    """Rows of a table -> rows in the budget, from a share or a number of them."""
    if ratio is not None and budget is not None:
        raise ValueError(
            f"{method}: ratio={ratio} and budget={budget} both size it; give one of them"
        )
    if budget is not None:
        if budget < 1:
            raise ValueError(f"{method}: needs a budget of 1 row or more, got {budget}; raise it")
        return lambda n: min(budget, n)
    ratio = DEFAULT_RATIO if ratio is None else ratio
    if not 0 < ratio <= 1:
        raise ValueError(f"{method}: needs 0 < ratio <= 1, got {ratio}; {DEFAULT_RATIO} is usual")
    return lambda n: min(n, max(1, round(ratio * n)))
