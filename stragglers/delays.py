"""Delay distributions: iid durations of one mini-batch, in seconds.

A distribution is stored as its quantile function, and a sample is the quantile of a uniform number.
Two distributions that get the same uniform numbers are coupled (common random numbers). The arms of
an experiment then differ by the distribution and not by chance.
"""

import enum
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import ArrayLike


class Residual(enum.Enum):
    """Remaining time of a mini-batch under way, compared with the duration of a new mini-batch."""

    MEMORYLESS = enum.auto()  # the remaining time has the same distribution
    SHORTER = enum.auto()  # "new longer than used" (1803.01113): the remaining time is shorter
    LONGER = enum.auto()  # "new shorter than used": the remaining time is longer


@dataclass(frozen=True)
class Law:
    """Distribution of iid durations in seconds: `inverse` of a uniform number.

    atoms: pairs (seconds, probability) of a distribution on a few values, the shortest first.
    residual: the remaining time of a mini-batch under way, compared with a new duration, as a
    `Residual`; None if no case of `Residual` holds.
    """

    name: str
    params: tuple[tuple[str, float], ...]
    base_mean: float = field(repr=False)
    inverse: Callable[[np.ndarray], np.ndarray] = field(repr=False, compare=False)
    atoms: tuple[tuple[float, float], ...] = field(default=(), repr=False, compare=False)
    residual: Residual | None = field(default=None, repr=False, compare=False)

    def mean(self) -> float:
        """Return the expected duration in seconds; `inf` if it is infinite or overflows a float."""
        return self.base_mean

    def quantile(self, u: ArrayLike) -> np.ndarray:
        """Return the `u`-quantiles of the durations in seconds, for shares `u` in [0, 1].

        The result has the shape of `u`. Raises ValueError if a share is outside [0, 1].
        """
        u = np.asarray(u, np.float64)
        if not ((u >= 0) & (u <= 1)).all():
            raise ValueError(f"{self.name}: quantiles need 0 <= u <= 1, got u={u}; pass a share")
        with np.errstate(divide="ignore", over="ignore"):  # infinity, for an unbounded distribution
            return self.inverse(u)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value:g}' for key, value in self.params)})"


def deterministic(value: float) -> Law:
    """Let every mini-batch take `value` seconds."""
    _positive("deterministic", value=value)
    return _law(
        "deterministic",
        lambda u: np.full(u.shape, float(value)),
        value,
        value=value,
        atoms=((value, 1.0),),
        residual=Residual.SHORTER,
    )


def exponential(scale: float) -> Law:
    """Draw exponential durations with mean `scale` seconds."""
    _positive("exponential", scale=scale)

    def inverse(u):
        return -scale * np.log1p(-u)

    return _law("exponential", inverse, scale, residual=Residual.MEMORYLESS, scale=scale)


def shifted_exponential(shift: float, scale: float) -> Law:
    """Draw `shift` seconds plus an exponential duration with mean `scale` seconds.

        >>> shifted_exponential(shift=1.0, scale=0.5).mean()
        1.5
    """
    _positive("shifted_exponential", shift=shift, scale=scale)

    def inverse(u):
        return shift - scale * np.log1p(-u)

    own = {"shift": shift, "scale": scale}
    return _law("shifted_exponential", inverse, shift + scale, residual=Residual.SHORTER, **own)


def pareto(minimum: float, shape: float) -> Law:
    """Draw from P(X > x) = (minimum / x)^shape, `minimum` in s; the mean is inf if shape <= 1.

        >>> pareto(minimum=1.0, shape=2.0).mean()
        2.0
    """
    _positive("pareto", minimum=minimum, shape=shape)
    mean = minimum * shape / (shape - 1) if shape > 1 else math.inf

    def inverse(u):
        return minimum * (1 - u) ** (-1 / shape)

    return _law("pareto", inverse, mean, minimum=minimum, shape=shape)


def weibull(scale: float, shape: float) -> Law:
    """Draw from P(X > x) = exp(-(x / scale)^shape), `scale` in seconds."""
    _positive("weibull", scale=scale, shape=shape)

    def inverse(u):
        return scale * (-np.log1p(-u)) ** (1 / shape)

    mean = scale * scipy.special.gamma(1 + 1 / shape)  # inf if it overflows a float
    return _law("weibull", inverse, mean, residual=_by_shape(shape), scale=scale, shape=shape)


def gamma(shape: float, scale: float) -> Law:
    """Draw gamma durations with mean `shape * scale` seconds."""
    _positive("gamma", shape=shape, scale=scale)

    def inverse(u):
        return scale * scipy.special.gammaincinv(shape, u)

    mean = shape * scale
    return _law("gamma", inverse, mean, residual=_by_shape(shape), shape=shape, scale=scale)


def lognormal(mu: float, sigma: float) -> Law:
    """Draw durations whose logarithm of seconds is normal with mean `mu` and deviation `sigma`."""
    _positive("lognormal", sigma=sigma)
    if not abs(mu) < math.log(sys.float_info.max):
        raise ValueError(f"lognormal: needs a finite mu, got mu={mu}; pass a log of seconds")

    def inverse(u):
        return np.exp(mu + sigma * scipy.special.ndtri(u))

    with np.errstate(over="ignore"):
        mean = np.exp(mu + sigma**2 / 2)
    return _law("lognormal", inverse, mean, mu=mu, sigma=sigma)


def uniform(low: float, high: float) -> Law:
    """Draw uniform durations between `low` and `high` seconds.

        >>> uniform(low=1.0, high=3.0).mean()
        2.0
    """
    if not 0 <= low < high < math.inf:
        raise ValueError(
            f"uniform: needs 0 <= low < high, got low={low}, high={high}; order the two bounds"
        )

    def inverse(u):
        return low + (high - low) * u

    mean = (low + high) / 2
    return _law("uniform", inverse, mean, residual=Residual.SHORTER, low=low, high=high)


def bernoulli_slowdown(value: float, factor: float, probability: float) -> Law:
    """Draw `value` seconds, or `factor * value` seconds with probability `probability`.

        >>> bernoulli_slowdown(value=1.0, factor=5.0, probability=0.5).mean()
        3.0
    """
    _positive("bernoulli_slowdown", value=value)
    if not 1 <= factor < math.inf:
        raise ValueError(
            f"bernoulli_slowdown: needs factor >= 1, got factor={factor}; give how many times "
            "slower"
        )
    if not 0 <= probability <= 1:
        raise ValueError(
            f"bernoulli_slowdown: needs 0 <= probability <= 1, got probability={probability}; "
            "give a share"
        )
    quickest = value if probability < 1 else value * factor  # also at u = 0

    return _law(
        "bernoulli_slowdown",
        lambda u: np.where(u <= 1 - probability, quickest, value * factor),
        value * (1 + (factor - 1) * probability),
        atoms=((value, 1 - probability), (value * factor, probability)),
        value=value,
        factor=factor,
        probability=probability,
    )


def jitter(mean: float, sigma: float) -> Law:
    """Draw log-normal seconds of mean `mean`; `sigma`: deviation of the log, 0 for a constant."""
    _positive("jitter", mean=mean)
    return lognormal(math.log(mean) - sigma**2 / 2, sigma) if sigma else deterministic(mean)


_ALL = (deterministic, exponential, shifted_exponential, pareto, weibull, gamma, lognormal, uniform)
LAWS: dict[str, Callable[..., Law]] = {
    law.__name__: law for law in (*_ALL, bernoulli_slowdown, jitter)
}


def _law(
    name: str, inverse: Callable, mean: float, atoms=(), residual=None, **params: float
) -> Law:
    given = tuple(params.items())
    return Law(name, given, float(mean), inverse, atoms=atoms, residual=residual)


def _by_shape(shape: float) -> Residual:
    return Residual.SHORTER if shape >= 1 else Residual.LONGER


def _positive(name: str, **values: float) -> None:
    for key, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: needs {key} > 0, got {key}={value}; set a positive {key}")
