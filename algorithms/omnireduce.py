"""OmniReduce: non-zero blocks of gradients, summed by aggregators.

J. Fei, C.-Y. Ho, A. N. Sahu, M. Canini, A. Sapio, *Efficient Sparse Collective Communication and
its application to Accelerate Distributed Deep Learning*, SIGCOMM 2021, Sec. 3: a gradient is cut
into blocks of 256 elements. Workers send the non-zero blocks, with their numbers, to an aggregator,
which sends all workers the sums. The aggregators run on the workers (colocated mode) and share the
blocks. The sum is exact: one step equals one step of `all_reduce`. The paper streams blocks, each
with the number of the next one. Here lists of blocks have a fixed length. Where a list is too
short, all workers send everything; the records count such updates as `fallbacks`.
"""

import optax

from algorithms import compression
from algorithms.base import Algorithm, whole
from algorithms.parallax import through_owners
from algorithms.row_sparse import with_tables_reduced


def omnireduce(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    block: int = 256,
    ratio: float | None = None,
    budget: int | None = None,
    union_ratio: float | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Add up the non-zero blocks of gradients at aggregators, then let `optimizer` take one step.

    sparse: the parameters that are cut into blocks, as in `s2_reducer`; all others take part in a
        dense mean. block: elements of a block.
    ratio, budget: non-zero blocks expected of a worker, as a share of a parameter's blocks or as a
        number; they size the lists. union_ratio: non-zero blocks expected of all workers together,
        as a share; None: as if no two workers had a block in common.
    """
    whole("omnireduce", 1, block=block)
    by_owners = through_owners("omnireduce", ratio, budget, union_ratio)
    reducer = compression.reshaped(by_owners, lambda entries: (-(-entries // block), block))
    return with_tables_reduced("omnireduce", optimizer, reducer, sparse, weighting)
