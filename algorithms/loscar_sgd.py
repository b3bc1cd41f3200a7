"""LOSCAR-SGD: averages of random coordinates that travel while local steps go on.

Y. Maziane, A. Mahran, A. Maranjyan, P. Richtarik, *LOSCAR-SGD: Local SGD with Communication-
Computation Overlap and Delay-Corrected Sparse Model Averaging*, arXiv 2605.20866; formulas read in
the transcription https://junaidaliop.github.io/zij/math/loscarsgd/. Worker i makes N_i local steps
from x_i to y_i, then Q_i more to z_i. During the last Q_i steps K of the d coordinates of y_i
travel. All workers send the same random set S of coordinates:

    m   <- mean_i y_i               on S
    x_i <- m + (z_i - y_i)          on S
    x_i <- z_i                      elsewhere

Setting x_i to m on S would undo the Q_i steps there. With K = d and Q_i = 0 this is local SGD.
Streaming DiLoCo pulls models towards a server's; LOSCAR-SGD has no server and no outer step.

N_i and Q_i count a worker's mini-batches in `every - overlap` and in `overlap` rounds of a waiting
rule. All workers have equal weight; an idle worker sends its model as it is. Only values are sent,
as a shared seed gives S. S has one coordinate in each of K equal slices after a random start.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, Needs, whole
from algorithms.links import Links, given
from algorithms.reducers import check_ratio
from comms import sparse
from comms.collectives import weighted_mean
from comms.lattice import ravel_floats
from comms.messages import Payload


def entries(params, ratio: float) -> int:
    """Return K: the share `ratio` of all float entries, at least 1 if there are any."""
    leaves = jax.tree.leaves(params)
    size = sum(x.size for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))
    return min(size, max(1, round(ratio * size)))


def average_behind_steps(
    ratio: float, every: int, overlap: int, seed: int
) -> optax.GradientTransformationExtraArgs:
    """Average random coordinates in active rounds, and apply m - y_i `overlap` rounds later."""

    def init_fn(params):
        size = entries(jax.tree.map(jnp.asarray, params), ratio)
        return jnp.zeros(size, jnp.float32)  # m - y_i on S

    def update_fn(updates, state, params, *, version, active=None, weight=None, **extra):
        del extra
        model, restore = ravel_floats(jax.tree.map(jnp.subtract, params, updates))

        def coordinates(sent):
            key = jax.random.fold_in(jax.random.key(seed), jnp.asarray(sent, jnp.int32))
            return sparse.random_indices(model.size, state.size, key)

        def corrected(model, correction):
            arrives = (version + 1) % every == 0
            return model.at[coordinates(version - overlap)].add(jnp.where(arrives, correction, 0))

        def send(model):
            own = model[coordinates(version)]
            return weighted_mean(own, weight, AXIS) - own

        if overlap:
            model = corrected(model, state)
        state = jax.lax.cond(given(active).any(), send, lambda model: state, model)
        if not overlap:
            model = corrected(model, state)
        return jax.tree.map(jnp.subtract, restore(model), params), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def loscar_sgd(
    optimizer: optax.GradientTransformation,
    workers: int,
    *,
    ratio: float = 0.1,
    every: int = 2,
    overlap: int = 1,
    seed: int = 0,
) -> Algorithm:
    """Step locally with `optimizer`, and average random coordinates while steps go on.

    ratio: K / d. every: rounds from one average to the next. overlap: rounds that a message may
    take, at most `every`; 0: workers wait for it. seed: of S. Every update needs all workers: take
    a waiting rule in rounds. `neighbour_barrier` waits only in rounds with messages.
    """
    check_ratio("loscar_sgd", ratio)
    whole("loscar_sgd", 1, workers=workers, every=every)
    whole("loscar_sgd", 0, overlap=overlap)
    if overlap > every:
        raise ValueError(
            f"loscar_sgd: needs overlap <= every, got {overlap} and {every}; a message arrives "
            "before the next one leaves"
        )
    # Every worker hears all others, in the same rounds.
    partners = (np.arange(workers) + np.arange(1, max(workers, 2))[:, None]) % workers

    def active(first: int, count: int) -> np.ndarray:
        sends = (np.arange(first, first + count) + 1 + overlap) % every == 0
        return np.repeat(sends[:, None], len(partners), axis=1)

    def messages(params, workers, row):
        sends = row.active is None or row.active.any()
        return (Payload((4 * entries(params, ratio) if sends else 0,), late=overlap),)  # float32

    return Algorithm(
        work=optimizer,
        exchange=average_behind_steps(ratio, every, overlap, seed),
        messages=messages,
        links=Links(partners, active, directed=True, period=every),
        weight=lambda batches: jnp.ones_like(batches, jnp.float32),  # idle workers count, too
        needs=Needs("all workers send the same coordinates", workers=workers),
    )
