"""Sparsified all-reduce with error feedback: the largest entries, or random ones.

Top-k: S. U. Stich et al., *Sparsified SGD with Memory*, arXiv 1809.07599; with momentum correction
and a warm-up of the ratio it is *Deep Gradient Compression*, Y. Lin et al., arXiv 1712.01887. Every
worker gathers the entries of all. Random-k: all workers send the same entries, from a shared seed,
so that they can be all-reduced.
"""

import math

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer
from comms import sparse
from comms.messages import Payload

STAGES = 4  # of the warm-up, as in DGC: 25 %, 6.25 %, 1.6 %, 0.4 %, then 0.1 %


def largest(ratio: float) -> Reducer:
    """Sum of the largest entries of each worker, ratio * size of them."""

    def reduce(x, state, draw):
        del draw
        message = sparse.top_k(x, _entries(x, ratio))
        total = sparse.all_gather_sum(message, x.size, AXIS).reshape(x.shape)
        return total, sparse.decode(message, x.size).reshape(x.shape), state

    def payload(leaf, workers, update):
        return Payload(gathered=(sparse.payload_bytes(_sent(leaf, ratio), jnp.float32),))

    return Reducer(lambda leaf: (), reduce, payload)


def with_ratio_warmup(ratio: float, updates: int) -> Reducer:
    """`largest`, whose ratio falls to its value in equal factors over the first `updates`.

    arXiv 1712.01887 Sec. 3.3.
    """
    if updates == 0:
        return largest(ratio)
    stages = [largest(ratio ** ((s + 1) / (STAGES + 1))) for s in range(STAGES + 1)]

    def reduce(x, state, draw):
        stage = jnp.minimum(draw.update * STAGES // updates, STAGES)
        return jax.lax.switch(stage, [s.reduce for s in stages], x, state, draw)

    def payload(leaf, workers, update):
        stage = min(update * STAGES // updates, STAGES)
        return stages[stage].payload(leaf, workers, update)

    return Reducer(lambda leaf: (), reduce, payload)


def random(ratio: float, unbiased: bool) -> Reducer:
    """Sum of the same random entries of all workers, ratio * size of them.

    unbiased: scaled by size / entries.
    """

    def reduce(x, state, draw):
        k = _entries(x, ratio)
        scale = x.size / k if unbiased else 1.0
        values = scale * sparse.random_k(x, k, draw.shared)

        def decode(values):
            return sparse.random_k_decode(values, x.size, draw.shared).reshape(x.shape)

        return decode(jax.lax.psum(values, AXIS)), decode(values), state

    def payload(leaf, workers, update):
        return Payload((sparse.random_k_payload_bytes(_sent(leaf, ratio), jnp.float32),))

    return Reducer(lambda leaf: (), reduce, payload)


def top_k(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.01,
    momentum: float = 0.0,
    warmup_updates: int = 0,
    weighting: str = "proportional",
) -> Algorithm:
    """Gather the largest entries of every worker, keep the others for later, then step.

    ratio: share of entries that are sent, of every parameter at least one.
    momentum: decay of DGC's momentum, which then stands in for the optimizer's.
    warmup_updates: in which the ratio falls to its value.
    """
    _check_ratio("top_k", ratio)
    if not 0 <= momentum < 1:
        raise ValueError(f"top_k: needs 0 <= momentum < 1, got {momentum}; 0 is none")
    reducer = with_ratio_warmup(ratio, warmup_updates)
    if momentum:
        reducer = compression.with_momentum_correction(reducer, momentum)
    else:
        reducer = compression.with_error_feedback(reducer)
    return compressed(
        "top_k",
        optimizer,
        lambda path, leaf: reducer,
        warmup_updates=warmup_updates,
        weighting=weighting,
    )


def random_k(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.01,
    error_feedback: bool = True,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce the same random entries of every worker, then step.

    ratio: share of entries that are sent, of every parameter at least one.
    error_feedback: keep the others for later; without, what is sent is scaled to be unbiased.
    """
    _check_ratio("random_k", ratio)
    reducer = random(ratio, unbiased=not error_feedback)
    if error_feedback:
        reducer = compression.with_error_feedback(reducer)
    return compressed(
        "random_k", optimizer, lambda path, leaf: reducer, weighting=weighting, seed=seed
    )


def _entries(leaf, ratio: float) -> int:
    return max(1, round(ratio * math.prod(leaf.shape)))


def _sent(leaf, ratio: float) -> int:
    return min(_entries(leaf, ratio), math.prod(leaf.shape))  # of an empty one nothing


def _check_ratio(method: str, ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"{method}: needs 0 < ratio <= 1, got {ratio}; 0.01 is usual")
