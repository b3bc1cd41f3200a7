"""All-reduce SGD: one step on the weighted mean of the workers' gradients.

With the waiting rule `barrier` it is synchronous SGD; with `first_finisher` it is Non-blocking SGD
over Ring All-Reduce: H. He, P. Dube, *Accelerating Parallel Stochastic Gradient Descent via
Non-blocking Mini-batches*, arXiv 2211.00889.
"""

import functools

import optax

from algorithms.base import WEIGHTINGS, Algorithm, Details, choose, freeze_when_idle
from algorithms.compression import Reducer
from algorithms.mean import compressed, mean_messages, mean_over_workers, reduced_by


def all_reduce(
    optimizer: optax.GradientTransformation,
    *,
    collective: str | None = None,
    weighting: str = "proportional",
    exchange: Reducer | None = None,
) -> Algorithm:
    """Average the workers' gradients, then let `optimizer` take one step on the one model.

    collective: "psum", the default, leaves the all-reduce to the compiler; "ring" is our
        reduce-scatter and all-gather from `ppermute`. Two more need 2^q workers: "halving_doubling"
        takes fewer steps, see `comms.halving`. "straggl_ar" begins before the last worker, which
        should be the slowest, is ready, see `comms.straggl_ar`.
    weighting: "proportional" to finished mini-batches (unbiased over the finished samples) or
        "equal" for all workers that finished at least one.
    exchange: reducer of every parameter in place of the mean, see `algorithms.reducers`.
    """
    if exchange is not None:
        reducer_of = reduced_by("all_reduce", exchange, collective)
        return compressed("all_reduce", optimizer, reducer_of, weighting=weighting)
    return Algorithm(
        exchange=mean_over_workers(collective),
        messages=functools.partial(mean_messages, collective=collective),
        server=freeze_when_idle(optimizer),
        weight=choose("weighting", WEIGHTINGS, weighting),
        details=Details(mean_only=True),
    )
