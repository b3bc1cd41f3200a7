"""Workers whose data differ a lot: f_i(x) = sum_d a_id (x_d - c_id)^2 / 2, without noise.

The optimum of their mean is known, and so is where biased methods rest.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS
from runtimes import simulate
from tests import planned

N, D = 8, 5  # workers, parameters
_RNG = np.random.default_rng(0)
CURVATURE = _RNG.uniform(0.5, 2.0, (N, D)).astype(np.float32)
CENTRE = _RNG.standard_normal((N, D)).astype(np.float32)
OPTIMUM = (CURVATURE * CENTRE).sum(0, dtype=float) / CURVATURE.sum(0, dtype=float)


def gradients(x):
    """Return the gradients [n, d] of all workers, each at its own row of x."""
    return CURVATURE * (x - CENTRE)


def distance(x) -> float:
    """Return the largest distance of any worker's model from the optimum, in any parameter."""
    return float(np.abs(np.asarray(x) - OPTIMUM).max())


def rest_of_dpsgd(W, rate) -> np.ndarray:
    """Return the point [n, d] at which x <- W (x - rate g(x)) rests, by a linear system each."""
    curvature, centre = CURVATURE.astype(float), CENTRE.astype(float)
    rests = [
        np.linalg.solve(np.eye(N) - W @ np.diag(1 - rate * a), rate * W @ (a * c))
        for a, c in zip(curvature.T, centre.T, strict=True)
    ]
    return np.stack(rests, axis=1)


def in_step(method, updates, finished=None) -> np.ndarray:
    """Return the models [n, d] after updates in which all workers take part, from 0.

    finished: [updates, n] mini-batches of each worker, of one; None: one each.
    """
    finished = np.ones((updates, N), np.int32) if finished is None else finished
    active = None if method.links is None else method.links.active(0, updates)

    def whole(a, c, batches):
        x = jnp.zeros(D)
        state = method.exchange.init(x)
        server = () if method.server is None else method.server.init(x)

        def update(carry, row):
            x, state, server, t = carry
            count, active = row
            given = {"batches": count, "weight": method.weight(count), "nominal": 1}
            given |= {"version": t, "first": t, "samples": jnp.float32(N * t)}
            given["worker"] = jax.lax.axis_index(AXIS)
            gradient = jnp.where(count > 0, a * (x - c), 0)
            moved, state = method.exchange.update(
                gradient, state, x, active=active, staleness=0, **given
            )
            if method.server is not None:
                given["batches"] = jax.lax.psum(count, AXIS)
                moved, server = method.server.update(moved, server, x, **given)
            return (optax.apply_updates(x, moved), state, server, t + 1), None

        carry = (x, state, server, jnp.int32(0))
        return jax.lax.scan(update, carry, (batches, active))[0][0]

    train = jax.jit(jax.vmap(whole, axis_name=AXIS))
    return np.asarray(train(CURVATURE, CENTRE, jnp.asarray(finished.T)))


class _Own:
    """Every worker's only sample is its own quadratic."""

    batch_size = 1

    def indices(self, workers, counters):
        shape = np.broadcast_shapes(np.shape(workers), np.shape(counters))
        return np.broadcast_to(np.asarray(workers), shape)[..., None].astype(np.int32)


OWN = _Own()
DATA = {"a": CURVATURE, "c": CENTRE}


def losses(x, examples):
    return 0.5 * (examples["a"] * (x[None] - examples["c"]) ** 2).sum(-1)


def ran(method, wait, delay, updates, mini_batches=1, **options):
    """Return (simulator, state, schedule) after `updates` of a waiting rule, from 0."""
    rule = planned.rule(
        wait, delay, N, mini_batches, 0, graph=method.graph, links=method.links, **options
    )
    runtime = simulate.Simulator(method, losses, DATA, OWN, rule, mini_batches=mini_batches)
    return runtime, *runtime.advance(runtime.start(np.zeros(D, np.float32)), np.inf, updates)


def simulated(*given, **options):
    """Return (models [n, d] or [1, d], schedule) of what `ran` runs."""
    runtime, state, schedule = ran(*given, **options)
    return np.asarray(runtime.models(state)), schedule
