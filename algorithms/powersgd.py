"""PowerSGD: gradients all-reduced as two thin factors, with error feedback and a warm start.

Vogels, Karimireddy, Jaggi, arXiv 1905.13727, Algorithm 1. A leaf [..., m] is seen as the matrix
[n, m]. A leaf with fewer than two axes, or whose factors would not be smaller, stays dense, and its
Q is empty. Leaves have any float dtype; factors and sums are float32. A matrix that is not
finite everywhere gives NaN everywhere, and leaves Q unchanged.
"""

import math

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm, whole
from algorithms.compression import Reducer
from algorithms.mean import compressed
from comms.messages import Payload


def factor_shape(shape: tuple[int, ...], rank: int) -> tuple[int, int, int] | None:
    """Return (n, m, r) for P [n, r] and Q [m, r]; None for a leaf that stays dense.

    Raises ValueError for a rank below 1.
    """
    whole("powersgd", 1, rank=rank)
    if len(shape) < 2 or 0 in shape:
        return None
    n, m = math.prod(shape[:-1]), shape[-1]
    rank = min(rank, n, m)
    return (n, m, rank) if (n + m) * rank < n * m else None


def first_factor(shape: tuple[int, ...], rank: int, key) -> jax.Array:
    """Return a Gaussian Q, float32 [m, r], or [0, 0] for a dense leaf; workers share the key."""
    factors = factor_shape(shape, rank)
    return jax.random.normal(key, factors[1:] if factors else (0, 0), jnp.float32)


def factored_all_reduce(x, q, axis: str = AXIS) -> tuple[jax.Array, jax.Array]:
    """Return the rank-r sum over the workers, float32 of x's shape, and Q for the next step.

    P = sum M Q, orthonormalised; Q = sum M^T P; the sum is P Q^T. `q` must be equal on all
    workers. Reusing Q is the paper's warm start (section 4.2: one power iteration per step).
    """
    x = x.astype(jnp.float32)
    if q.size == 0:
        return jax.lax.psum(x, axis), q
    matrix = x.reshape(-1, x.shape[-1])
    p = orthonormal(jax.lax.psum(matrix @ q, axis))
    sent = jax.lax.psum(matrix.T @ p, axis)
    # Q of a zero or NaN gradient must not be the start of all later updates.
    usable = jnp.isfinite(sent).all() & (sent != 0).any()
    return (p @ sent.T).reshape(x.shape), jnp.where(usable, sent, q)


def orthonormal(p) -> jax.Array:
    """Return orthonormal columns with the span of p [n, r], r <= n; NaN if p is not finite.

    Unlike Gram-Schmidt, QR gives orthonormal columns even where p's columns are dependent.
    """
    basis, _ = jnp.linalg.qr(p)
    return jnp.where(jnp.isfinite(p).all(), basis, jnp.nan)


def low_rank(rank: int, seed: int) -> Reducer:
    """Sum arrays that are larger than their factors, approximately to rank `rank`; state: Q."""

    def reduce(x, q, draw):
        total, q = factored_all_reduce(x, q, AXIS)
        return total, compression.share(total, draw), q

    def payload(leaf, workers, update):
        n, m, r = factor_shape(leaf.shape, rank)
        return Payload((4 * n * r, 4 * m * r))

    return Reducer(
        lambda leaf: first_factor(leaf.shape, rank, jax.random.key(seed)), reduce, payload
    )


def powersgd(
    optimizer: optax.GradientTransformation,
    *,
    rank: int = 2,
    warmup_updates: int = 0,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce a low-rank approximation, keep its error for later, then step.

    rank: of every matrix; parameters that would not get smaller are all-reduced dense.
    warmup_updates: number of updates at the start in which all parameters are all-reduced dense.
    Every update needs all workers: take a waiting rule in rounds.
    """
    factor_shape((), rank)  # raises ValueError for a rank of 0
    reducer = compression.with_dense_warmup(low_rank(rank, seed), warmup_updates)
    reducer = compression.with_error_feedback(reducer)
    return compressed(
        "powersgd",
        optimizer,
        lambda path, leaf: reducer if factor_shape(leaf.shape, rank) else None,
        warmup_updates=warmup_updates,
        equal_memory=True,
        weighting=weighting,
        seed=seed,
    )
