"""Staleness-aware asynchronous SGD: six transforms of a gradient before one all-reduce.

A worker takes its gradient g at w_tau, and the server is at w_j when g arrives: `staleness` is
j - tau, the distance is ||w_j - w_tau||^2. The waiting rule, e.g. `k_batch_async`, decides which
pushes make an update. A fresh gradient passes all unchanged; a, b, C', l and n are parameters.

    delay_adaptive        g * min(1, n / staleness)          K. Mishchenko et al., arXiv 2206.07638,
                                                             A. Koloskova et al., arXiv 2206.08307
    inverse_staleness     g / staleness                      W. Zhang et al., arXiv 1511.05950
    polynomial_staleness  g * (1 + staleness)^-a             FedAsync, arXiv 1903.03934; with
                                                             a = 1/2 FedBuff, arXiv 2106.06639
    hinge_staleness       g / (a (staleness - b) + 1) beyond b           FedAsync
    compensated_rate      g * min(1, C' / ||w_j - w_tau||^2) S. Dutta et al., arXiv 1803.01113
    dc_asgd               g + l g * g * (w_j - w_tau)        S. Zheng et al., arXiv 1609.08326
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from algorithms.all_reduce import all_reduce
from algorithms.base import AXIS, Algorithm, choose, whole
from algorithms.mean import mean_over_workers
from comms import collectives


def scale_by_staleness(weight: Callable) -> optax.GradientTransformationExtraArgs:
    """Multiply a contribution by a factor; weight: staleness in updates, float32 -> factor."""

    def update_fn(updates, state, params=None, *, staleness=0, **extra):
        del params, extra
        factor = weight(jnp.asarray(staleness, jnp.float32))
        return jax.tree.map(lambda u: (factor * u).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def _own(distance, weight):
    del weight
    return distance


def _mean(distance, weight):
    return collectives.weighted_mean(distance, weight, AXIS)


DISTANCES = {"gradient": _own, "mean": _mean}


def scale_by_distance(
    threshold: float, per: str = "gradient"
) -> optax.GradientTransformationExtraArgs:
    """Multiply a contribution by min(1, threshold / ||w_j - w_tau||^2).

    per: "gradient": every gradient has its own distance; "mean": all have the mean distance.
    """
    distance_of = choose("per", DISTANCES, per)

    def update_fn(updates, state, params, *, current=None, weight=None, **extra):
        del extra
        if current is None:  # in lock-step every worker reads the newest parameters
            return updates, state
        off = jax.tree.map(lambda now, read: (now - read).astype(jnp.float32), current, params)
        distance = distance_of(optax.tree.norm(off, squared=True), weight)
        factor = threshold / jnp.maximum(distance, threshold)
        return jax.tree.map(lambda u: (factor * u).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def compensate_delay(strength: float) -> optax.GradientTransformationExtraArgs:
    """Correct a gradient to first order: g + strength g * g * (w_j - w_tau), elementwise.

    g * g stands for the diagonal of the Hessian (arXiv 1609.08326).
    """

    def update_fn(updates, state, params, *, current=None, **extra):
        del extra
        if current is None:
            return updates, state
        return jax.tree.map(
            lambda g, now, read: g + strength * g * g * (now - read), updates, current, params
        ), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def before_all_reduce(transform, optimizer) -> Algorithm:
    """Return all-reduce SGD whose contributions pass through `transform` first.

    transform: it must leave a contribution of staleness 0 unchanged.
    """
    exchange = optax.chain(optax.with_extra_args_support(transform), mean_over_workers())
    return all_reduce(optimizer)._replace(exchange=exchange)


def delay_adaptive(optimizer: optax.GradientTransformation, workers: int) -> Algorithm:
    """Weigh by min(1, workers / staleness): full steps up to staleness `workers` (2206.08307)."""
    whole("delay_adaptive", 1, workers=workers)
    return before_all_reduce(
        scale_by_staleness(lambda s: workers / jnp.maximum(s, workers)), optimizer
    )


def inverse_staleness(optimizer: optax.GradientTransformation) -> Algorithm:
    """Take steps inversely proportional to the staleness (1511.05950)."""
    return before_all_reduce(scale_by_staleness(lambda s: 1 / jnp.maximum(s, 1)), optimizer)


def polynomial_staleness(optimizer: optax.GradientTransformation, power: float = 0.5) -> Algorithm:
    """Weigh by (1 + staleness)^-power: FedBuff for power 1/2, FedAsync for any power."""
    _refuse("polynomial_staleness", power >= 0, f"power >= 0, got {power}; 0.5 is FedBuff's")
    return before_all_reduce(scale_by_staleness(lambda s: (1 + s) ** -power), optimizer)


def hinge_staleness(
    optimizer: optax.GradientTransformation, slope: float = 1.0, free: float = 4.0
) -> Algorithm:
    """Weigh by 1 up to a staleness of `free`, then by 1 / (slope (staleness - free) + 1)."""
    _refuse("hinge_staleness", min(slope, free) >= 0, f"slope, free >= 0, got {slope}, {free}")
    return before_all_reduce(
        scale_by_staleness(lambda s: 1 / (slope * jnp.maximum(s - free, 0) + 1)), optimizer
    )


def compensated_rate(
    optimizer: optax.GradientTransformation, threshold: float, per: str = "gradient"
) -> Algorithm:
    """Step at the rate min(C / ||w_j - w_tau||^2, eta_max) of "Slow and Stale Gradients".

    eta_max is the optimizer's learning rate. threshold: C / eta_max, the largest squared distance
    with a full step. per: with several gradients in an update, "gradient" shrinks distant gradients
    alone, so that a straggler does not slow fresh ones down; "mean" takes one rate for all, from
    the mean distance.
    """
    _refuse("compensated_rate", threshold > 0, f"threshold > 0, got {threshold}; it is C / eta_max")
    return before_all_reduce(scale_by_distance(threshold, per), optimizer)


def dc_asgd(optimizer: optax.GradientTransformation, strength: float = 0.04) -> Algorithm:
    """Compensate the delay of Async-SGD, with a constant lambda = strength (1609.08326)."""
    _refuse("dc_asgd", strength >= 0, f"strength >= 0, got {strength}; 0 is Async-SGD")
    return before_all_reduce(compensate_delay(strength), optimizer)


def _refuse(name: str, fits: bool, needs: str) -> None:
    if not fits:
        raise ValueError(f"{name}: needs {needs}; correct it")
