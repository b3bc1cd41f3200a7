"""Convergence of SGD with few or stale gradients: error bounds, exact small cases, complexities.

The bounds come from Dutta, Joshi, Ghosh, Dube, Nagpurkar, arXiv 1803.01113, at a fixed learning
rate eta, for a server that updates on k gradients of m samples each. The time complexities come
from Rennala SGD, arXiv 2305.12387, for workers of fixed speeds. The seconds of an update and the
staleness of its gradients are in `stragglers.theory.k_protocols`.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


def staleness_factor(gamma: float, fresh: float) -> float:
    """Return the factor of staleness in the bounds below: gamma' = 1 - gamma + p0 / 2; 1 without.

    gamma: E||grad F(w_j) - grad F(w_read)||^2 <= gamma E||grad F(w_j)||^2; fresh: `fresh_share`.
    A factor that is not positive has no bound: ValueError. Source: arXiv 1803.01113.
    """
    factor = 1 - gamma + fresh / 2
    if not factor > 0:
        raise ValueError(
            f"staleness_factor: 1 - gamma + fresh / 2 must be > 0, got {factor:g}; take a smaller "
            "learning rate or a larger k, which lower gamma"
        )
    return factor


def error_floor(
    rate: float,
    k: int,
    *,
    smoothness: float,
    convexity: float,
    variance: float,
    batch_size: int = 1,
    factor: float = 1.0,
) -> float:
    """Return eta L s^2 / (2 c gamma' k m), the bound on F - F* after infinitely many updates.

    rate: eta, fixed. variance: s^2 of one sample's gradient; factor: `staleness_factor`, 1 for
    synchronous rules.
    Source: arXiv 1803.01113.
    """
    return rate * smoothness * variance / (2 * convexity * factor * k * batch_size)


def convex_bound(
    updates: ArrayLike,
    rate: float,
    k: int,
    gap: float,
    *,
    smoothness: float,
    convexity: float,
    variance: float,
    batch_size: int = 1,
    factor: float = 1.0,
    growth: float = 0.0,
) -> np.ndarray:
    """Bound F - F* after `updates` updates of a strongly convex F, from F_0 - F* = `gap`.

    The floor plus (1 - eta c gamma')^J (gap - floor); against seconds, J = t / expected_runtime.
    growth: M_G, by which the variance grows with the squared gradient. A rate beyond
    1 / (2 L (M_G/(k m) + 1)) raises ValueError. Source: arXiv 1803.01113.
    """
    _check_rate(rate, k, smoothness, batch_size, growth)
    floor = error_floor(
        rate,
        k,
        smoothness=smoothness,
        convexity=convexity,
        variance=variance,
        batch_size=batch_size,
        factor=factor,
    )
    return floor + (1 - rate * convexity * factor) ** np.asarray(updates) * (gap - floor)


def gradient_bound(
    updates: ArrayLike,
    rate: float,
    k: int,
    gap: float,
    *,
    smoothness: float,
    variance: float,
    batch_size: int = 1,
    factor: float = 1.0,
    growth: float = 0.0,
) -> np.ndarray:
    """Bound the mean of E||grad F||^2 over updates 0..J, where F need not be convex.

    2 gap / ((J+1) eta gamma') + L eta s^2 / (k m gamma'); arguments and errors as in
    `convex_bound`. Source: arXiv 1803.01113.
    """
    _check_rate(rate, k, smoothness, batch_size, growth)
    descent = 2 * gap / ((np.asarray(updates) + 1) * rate * factor)
    return descent + smoothness * rate * variance / (k * batch_size * factor)


def varying_batches_bound(
    batches: ArrayLike,
    rates: ArrayLike,
    gap: float,
    *,
    smoothness: float,
    variance: float,
) -> float:
    """Bound the rate-weighted mean of E||grad F||^2 over updates of batches that vary.

    (2 gap + L s^2 sum eta_k^2 / B_k) / sum eta_k, where update k has B_k samples and F need not be
    convex. batches: [K], which may depend on delays, not on samples; rates: eta, [K] or one for
    all. At one rate noise counts by the harmonic mean of the batches, which updates of few samples
    dominate. With rates in proportion to the batches only the sum of the batches counts.

    The condition on the rates is 0 < eta_k <= 1 / L for the largest of them, whatever the batches;
    other rates raise ValueError, as does an update of no samples.
    Source: Non-blocking SGD (arXiv 2211.00889) takes gradients at one point and adds them up, so
    that the descent lemma holds with the variance s^2 / B_k, as in 1606.04838, Theorem 4.8.
    """
    batches, rates = np.broadcast_arrays(np.asarray(batches, float), np.asarray(rates, float))
    if not (batches.size and (batches > 0).all()):
        raise ValueError(
            "varying_batches_bound: needs updates on at least one sample each; leave out the others"
        )
    if not ((rates > 0) & (rates * smoothness <= 1)).all():
        raise ValueError(
            f"varying_batches_bound: rates of {rates.min():g} to {rates.max():g} must lie above 0 "
            f"and not exceed 1 / L = {1 / smoothness:g}; take smaller ones"
        )
    noise = smoothness * variance * np.sum(rates**2 / batches)
    return float((2 * gap + noise) / rates.sum())


def stationary_loss(
    rate: float,
    k: int,
    variance: ArrayLike,
    *,
    curvature: ArrayLike = 1.0,
    batch_size: int = 1,
) -> float:
    """Return E[F] of a quadratic F under k_sync at a fixed rate, exactly, its minimum being 0.

    The sum of eta s^2 / (2 k m (2 - eta lambda)) over the axes of F: lambda is the curvature along
    an axis, and s^2 the variance of one sample's gradient along it. It follows from the stationary
    variance of w <- (1 - eta lambda) w - eta noise. Outside 0 < eta lambda < 2: ValueError.
    """
    steps = rate * np.asarray(curvature, np.float64)
    if not ((steps > 0) & (steps < 2)).all():
        raise ValueError(
            f"stationary_loss: needs 0 < rate * curvature < 2, got {np.min(steps):g} to "
            f"{np.max(steps):g}; it diverges otherwise, take a smaller rate"
        )
    return float(np.sum(rate * np.asarray(variance) / (2 * k * batch_size * (2 - steps))))


def stability_limit(delay: float) -> float:
    """Return the largest stable rate times curvature if every gradient has staleness `delay`.

    2 sin(pi / (2 (2 d + 1))): there a root of z^(d+1) - z^d + eta l reaches the unit circle.
    """
    if delay < 0:
        raise ValueError(f"stability_limit: needs delay >= 0 updates, got {delay}; count updates")
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def minibatch_complexity(
    seconds: ArrayLike, accuracy: float, *, smoothness: float, gap: float, variance: float
) -> float:
    """Return the seconds until E||grad F||^2 <= accuracy if all P gradients are awaited.

    Up to a constant, max tau (L D / e + s^2 L D / (P e^2)) for workers that need tau = `seconds`
    [P] a gradient.
    Source: arXiv 2305.12387, Minibatch SGD.
    """
    tau = _sorted(seconds)
    return float(tau[-1] * _gradients(tau.size, accuracy, smoothness, gap, variance))


def async_complexity(
    seconds: ArrayLike, accuracy: float, *, smoothness: float, gap: float, variance: float
) -> float:
    """Return `minibatch_complexity` for Async-SGD with delay-adaptive rates.

    The harmonic mean of tau takes the place of the maximum. Source: arXiv 2305.12387.
    """
    tau = _sorted(seconds)
    harmonic = tau.size / np.sum(1 / tau)
    return float(harmonic * _gradients(tau.size, accuracy, smoothness, gap, variance))


def rennala_complexity(
    seconds: ArrayLike, accuracy: float, *, smoothness: float, gap: float, variance: float
) -> float:
    """Return `minibatch_complexity` for Rennala SGD, which no method beats on fixed speeds.

    The minimum of `async_complexity` over the m fastest workers, for all m. Source: arXiv
    2305.12387.
    """
    tau = _sorted(seconds)
    fastest = np.arange(1, tau.size + 1)
    harmonic = fastest / np.cumsum(1 / tau)
    return float(np.min(harmonic * _gradients(fastest, accuracy, smoothness, gap, variance)))


def _gradients(m, accuracy: float, smoothness: float, gap: float, variance: float):
    """Return the gradients that each of m workers computes: L D / e + s^2 L D / (m e^2)."""
    if not accuracy > 0:
        raise ValueError(f"theory: needs accuracy > 0, got {accuracy}; set a squared gradient norm")
    return smoothness * gap / accuracy * (1 + variance / (m * accuracy))


def _sorted(seconds: ArrayLike) -> np.ndarray:
    tau = np.sort(np.asarray(seconds, np.float64), axis=None)
    if not tau.size or not tau[0] > 0:
        raise ValueError(f"theory: needs positive seconds, got {seconds}; give one per worker")
    return tau


def _check_rate(rate: float, k: int, smoothness: float, batch_size: int, growth: float) -> None:
    largest = 1 / (2 * smoothness * (growth / (k * batch_size) + 1))
    if not 0 < rate <= largest:
        raise ValueError(
            f"theory: the bound holds for 0 < rate <= {largest:g}, got {rate}; lower the rate"
        )
