"""Shared parts of methods for row-sparse parameters: their choice, budgets of rows, reducers."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm, whole
from algorithms.compression import Reducer
from algorithms.mean import compressed
from algorithms.reducers import check_ratio
from comms import bitmap, compact, sketch
from comms.messages import Payload
from comms.trees import named_leaves

DEFAULT_RATIO = 0.18  # share of a table's rows, so that 82 % fewer rows are sent


def row_sparse(method: str, sparse: tuple[str, ...] | str) -> Callable[[str], bool]:
    """Return a function: path -> True for a row-sparse parameter; see `s2_reducer`."""
    if sparse == "auto":
        return lambda path: "embedding" in path
    if isinstance(sparse, str) or not sparse:
        raise ValueError(
            f"{method}: no parameter is said to be row-sparse, got sparse={sparse!r}; use "
            "all_reduce, a task with embedding tables, or a tuple of paths"
        )
    return lambda path: path in sparse


def budget_rows(method: str, ratio: float | None, budget: int | None) -> Callable[[int], int]:
    """Return a function: rows of a table -> budget of rows, a share `ratio` or just `budget`."""
    if ratio is not None and budget is not None:
        raise ValueError(
            f"{method}: ratio={ratio} and budget={budget} both size it; give one of them"
        )
    if budget is not None:
        whole(method, 1, budget=budget)
        return lambda n: min(budget, n)
    ratio = DEFAULT_RATIO if ratio is None else ratio
    check_ratio(method, ratio)
    return lambda n: min(n, max(1, round(ratio * n)))


def tables(tree, chosen: Callable[[str], bool]) -> list:
    """Return the row-sparse arrays of a tree, in order."""
    return [leaf for path, leaf in named_leaves(tree) if chosen(path) and leaf.ndim]


def undecided(algorithm: Algorithm, decide: Callable) -> Algorithm:
    """Return a method with open parameters; until they are decided, an exchange raises ValueError.

    decide: gradient -> parameters with which the method is built again.
    """

    def refuse(*_, **__):
        raise ValueError(
            "a method with a parameter that is left to a gradient cannot run; build it with the "
            "parameters that method.decide(gradient) returns"
        )

    exchange = optax.GradientTransformationExtraArgs(algorithm.exchange.init, refuse)
    details = algorithm.details._replace(decide=decide)
    return algorithm._replace(exchange=exchange, details=details)


def row_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of a row of a float32 array of this shape [n, ...]."""
    return 4 * math.prod(shape[1:])


def with_tables_reduced(
    method: str,
    optimizer: optax.GradientTransformation,
    reducer: Reducer,
    sparse: tuple[str, ...] | str,
    weighting: str,
    **options,
) -> Algorithm:
    """Return all-reduce SGD in which a reducer sums the row-sparse parameters; see `s2_reducer`.

    options: of `compressed`. `exchange.init` raises ValueError for a missing row-sparse parameter.
    """
    chosen = row_sparse(method, sparse)
    algorithm = compressed(
        method,
        optimizer,
        lambda path, leaf: reducer if chosen(path) and leaf.ndim else None,
        weighting=weighting,
        **options,
    )

    def init_fn(params):
        paths = [path for path, _ in named_leaves(params)]
        if sparse == "auto":
            missing = [] if any(map(chosen, paths)) else ["*embedding*"]
        else:
            missing = [name for name in sparse if name not in paths]
        if missing:
            way_out = f"set sparse to some of {', '.join(paths)}"
            if paths == [""]:
                way_out = "give a tree with names, as {'embedding': table}"
            raise ValueError(
                f"{method}: the model has no parameter {missing[0]!r} that could be row-sparse; "
                f"{way_out}"
            )
        return algorithm.exchange.init(params)

    exchange = optax.GradientTransformationExtraArgs(init_fn, algorithm.exchange.update)
    return algorithm._replace(exchange=exchange)


AGREEMENT = 4  # bytes of an int32, the largest number of rows of any worker


def list_bytes(budget: int, leaf) -> int:
    """Return the bytes of a list of `budget` rows and their int32 indices."""
    return budget * (4 + row_bytes(leaf.shape))


def in_lists(budget_of: Callable[[int], int], summed: Callable, payload: Callable) -> Reducer:
    """Sum arrays [n, ...] of at most budget_of(n) non-zero rows; dense if a worker has more.

    summed: (x, bitmap of its rows, budget) -> the sum. payload: as in `Reducer`, for rows that fit.
    """

    def reduce(x, state, draw):
        words, budget = bitmap.pack(bitmap.occupied(x)), budget_of(len(x))
        most = jax.lax.pmax(bitmap.count(words), AXIS)
        fell_back = most > budget
        total = jax.lax.cond(
            fell_back,
            lambda x: compact.dense_sum(x, fell_back, AXIS),
            lambda x: summed(x, words, budget),
            x,
        )
        left = jnp.maximum(most - budget, 0)
        return total, x, compression.count_fallback(state, fell_back.astype(jnp.int32), left)

    def instead(leaf, workers):
        return ((Payload((AGREEMENT, leaf.shape[0] * row_bytes(leaf.shape))),),)

    def pushed(leaf):
        return Payload(gathered=(list_bytes(budget_of(leaf.shape[0]), leaf),))

    return Reducer(
        lambda leaf: compression.no_fallbacks(1), reduce, payload, instead=instead, pushed=pushed
    )


NOISE = 0.5**0.5  # largest error of an estimate, relative to the error of the estimate 0


def capacities_dense(rows: int, buckets: int) -> tuple[int, ...]:
    """Return no capacities: for a union beyond the sketch, the workers send everything."""
    del rows, buckets
    return ()


def capacities_exact(rows: int, buckets: int) -> tuple[int, ...]:
    """Return capacities of fallback messages, in rows, by factors of 2: at most half is unused."""
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
    """Sum the non-zero rows of an array [n, ...] through a sketch, or by sending the rows.

    rows: of the sketch; columns_of: n -> columns of the sketch; peel: see `s2_reducer`;
    capacities_of: (n, buckets) -> rows that fit in each message of the fallback, ascending.
    """

    def capacities(n):
        return capacities_of(n, rows * columns_of(n))

    def planned(words, n, draw):
        """Return (seed, number of the union's rows that a sketch by this seed cannot carry)."""
        seed, columns = jax.random.bits(draw.shared, (), jnp.uint32), columns_of(n)
        if peel:
            return sketch.resolving_seed(words, rows, columns, n, seed)
        count = bitmap.count(words)
        return seed, jnp.where(count > sketch.entries_within(NOISE, rows, columns), count, 0)

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
            *(
                functools.partial(compact.sum_of_rows, words=words, budget=capacity, axis=AXIS)
                for capacity in capacities(len(x))
            ),
            lambda x: compact.dense_sum(x, chosen > 0, AXIS),
        ]
        total = _first_that_fits(branches, chosen, x)
        sent = x if peel else jnp.where(chosen > 0, x, compression.share(total, draw))
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


def _first_that_fits(branches, chosen, x):
    """Return branches[chosen](x), by nested conditions, one for each branch but the last."""
    first, *others = branches
    if not others:
        return first(x)
    return jax.lax.cond(chosen > 0, lambda x: _first_that_fits(others, chosen - 1, x), first, x)


def compacted(budget_of: Callable[[int], int]) -> Reducer:
    """Sum the non-zero rows of an array [n, ...], compacted; dense where the budget is too small.

    budget_of: n -> budget of rows.
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


def cheaper_granularity(arrays, reducer: Reducer, carried: Callable[[int], int]) -> str:
    """Return "row" or "element", the unit with fewer bytes for the arrays [n, ...] together.

    carried: n -> largest union, among n rows or elements, that is sent as planned. A larger union
    is sent by the smallest alternative that holds it.
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
    return "row" if by_row <= by_element else "element"
