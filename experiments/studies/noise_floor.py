"""How low SGD gets at a fixed rate on a convex task: the level of its noise, and a bound on it.

All that both need is taken at the minimum of the training loss, which is found to about six digits:
the curvatures are the eigenvalues of the Hessian, and the variances are of one sample's
gradient along its eigenvectors. The largest curvature stands for L, the smallest for c, the sum of
the variances for sigma^2.

The level is exact for a quadratic loss with these numbers, fresh gradients and independent samples.
The bound of arXiv 1803.01113 asks more than that: L and sigma^2 have to hold wherever training
goes, so that what is drawn of it with the numbers of the minimum can only be too low. Its form for
stale gradients divides by gamma' = 1 - gamma + p0 / 2, which is not estimated here: gamma compares
gradients along the run, which no record keeps, and p0 is known for exponential durations alone.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize

from experiments.tasks.base import Task
from stragglers.theory import convergence


class Minimum(NamedTuple):
    """The training loss around the point where it is lowest, along d directions."""

    loss: float
    curvatures: np.ndarray  # [d], ascending
    variances: np.ndarray  # [d] of one sample's gradient


def at_minimum(task: Task) -> Minimum:
    """The minimum of a convex task of few parameters, by L-BFGS."""
    start, shape = ravel_pytree(task.init(jax.random.key(0)))
    examples = jax.tree.map(jnp.asarray, task.train)

    def mean_loss(w):
        return task.losses(shape(w), examples).mean()

    def sample_loss(w, example):
        return task.losses(shape(w), jax.tree.map(lambda leaf: leaf[None], example))[0]

    loss_and_slope = jax.jit(jax.value_and_grad(mean_loss))

    def in_float64(w):
        value, slope = loss_and_slope(jnp.asarray(w, jnp.float32))
        return float(value), np.asarray(slope, np.float64)

    found = optimize.minimize(
        in_float64, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000}
    )
    lowest = jnp.asarray(found.x, jnp.float32)
    hessian = np.asarray(jax.jit(jax.hessian(mean_loss))(lowest), np.float64)
    slopes = jax.jit(jax.vmap(jax.grad(sample_loss), (None, 0)))(lowest, examples)
    curvatures, directions = np.linalg.eigh(hessian)
    return Minimum(
        float(found.fun), curvatures, (np.asarray(slopes, np.float64) @ directions).var(axis=0)
    )


def level(minimum: Minimum, rate: float, k: int, batch_size: int) -> float:
    """Loss above the lowest at which fresh gradients of k mini-batches keep SGD; or infinity."""
    if rate * minimum.curvatures[-1] >= 2:  # the quadratic diverges
        return math.inf
    return convergence.stationary_loss(
        rate, k, minimum.variances, curvature=minimum.curvatures, batch_size=batch_size
    )


def bound(minimum: Minimum, rate: float, k: int, batch_size: int) -> float:
    """The floor that arXiv 1803.01113 proves, with the numbers of the minimum."""
    return convergence.error_floor(
        rate,
        k,
        smoothness=float(minimum.curvatures[-1]),
        convexity=float(minimum.curvatures[0]),
        variance=float(minimum.variances.sum()),
        batch_size=batch_size,
    )
