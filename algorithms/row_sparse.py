"""Parts that methods with row-sparse parameters share: their choice, and budgets of rows."""

import fnmatch
import math
from collections.abc import Callable

import jax
import optax

from algorithms.base import Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer

DEFAULT_RATIO = 0.18  # share of a table's rows: 82 % fewer are sent


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


def with_known_paths(method: str, sparse: tuple[str, ...] | str, algorithm: Algorithm) -> Algorithm:
    """Let the exchange refuse parameters that lack a row-sparse one."""

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
    """Return a function: rows of a table -> rows in the budget, from a share or a number."""
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


def tables(tree, chosen: Callable[[str], bool]) -> list:
    """Return the row-sparse arrays of a tree, in order."""
    with_paths = jax.tree_util.tree_leaves_with_path(tree)
    named = (
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in with_paths
    )
    return [leaf for path, leaf in named if chosen(path) and leaf.ndim]


def undecided(algorithm: Algorithm, decide: Callable) -> Algorithm:
    """Return a method that names its open parameters, and whose exchange refuses to run before.

    decide: gradient -> parameters with which it is built again.
    """

    def refuse(*_, **__):
        raise ValueError(
            "a method with a parameter that is left to a gradient cannot run; build it with the "
            "parameters that `open(gradient)` returns"
        )

    exchange = optax.GradientTransformationExtraArgs(algorithm.exchange.init, refuse)
    return algorithm._replace(exchange=exchange, decide=decide)


def row_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of a row of a float32 array of this shape [n, ...]."""
    return 4 * math.prod(shape[1:])


def with_tables_reduced(
    method: str,
    optimizer: optax.GradientTransformation,
    reducer: Reducer,
    sparse: tuple[str, ...] | str,
    weighting: str,
) -> Algorithm:
    """Return all-reduce SGD in which a reducer sums the row-sparse parameters; see `s2_reducer`."""
    chosen = row_sparse(method, sparse)
    algorithm = compressed(
        method,
        optimizer,
        lambda path, leaf: reducer if chosen(path) and leaf.ndim else None,
        weighting=weighting,
    )
    return with_known_paths(method, sparse, algorithm)
