"""Which waiting rules to weigh, each over a grid of its own parameter.

A grid belongs to the name of a parameter and not to a rule, so that a rule that is brought along
has one, too. Values that a rule refuses are left out.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from experiments import parts
from experiments.advice.durations import Measured
from experiments.kinds import Kind
from stragglers.rule import most_mini_batches


class Scale(NamedTuple):
    """What the values of a grid are in proportion to."""

    workers: int
    mini_batches: int  # of a round
    seconds: np.ndarray  # of rounds, of all workers


def scale_of(measured: Measured, workers: int, mini_batches: int | Sequence[int]) -> Scale:
    """The scale of durations that were measured."""
    most = most_mini_batches(mini_batches)
    rounds = []
    for i in range(workers):
        values = measured.seconds[i % measured.workers]
        rounds.append(np.lib.stride_tricks.sliding_window_view(values, min(most, values.size)))
    each = [window.sum(axis=1) * most / window.shape[1] for window in rounds]
    quantiles = [np.quantile(values, np.linspace(0, 1, 101)) for values in each]
    return Scale(workers, most, np.concatenate(quantiles))  # workers count alike


def _counts(scale: Scale) -> list[int]:
    """Of contributions, and of mini-batches: shares of the workers and of a full round."""
    shares = np.array([1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0])
    several = np.concatenate([shares * scale.workers, shares * scale.workers * scale.mini_batches])
    return sorted({1, scale.workers - 1, *np.maximum(1, np.rint(several)).astype(int).tolist()})


def _limits(scale: Scale) -> list[int]:
    return sorted({1, *(max(1, round(share * scale.workers)) for share in (0.5, 1, 2, 4))})


def _seconds(scale: Scale) -> list[float]:
    quantiles = np.quantile(scale.seconds, [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]).tolist()
    return sorted({float(f"{seconds:.3g}") for seconds in [quantiles[0] / 2, *quantiles]})


def _local_steps(scale: Scale) -> list[int]:
    return sorted({1, max(1, scale.mini_batches // 2), scale.mini_batches})


# Name of a parameter -> its values, and whether also where the parameter has a default.
GRIDS: dict[str, tuple[Callable[[Scale], list], bool]] = {
    "k": (_counts, False),
    "limit": (_limits, False),
    "seconds": (_seconds, False),
    "gamma": (lambda scale: [0.1, 0.5], True),
    "c": (lambda scale: [0.0, 1.0, 3.0, 6.0], True),
    "calibration": (lambda scale: [20, 50], True),
    "local_steps": (_local_steps, True),
    "share": (lambda scale: [0.25, 0.5, 0.75], True),
    "in_flight": (lambda scale: ["finish", "cut"], True),
}


def parameter(kind: Kind, name: str) -> str | None:
    """The parameter of a rule that a curve is drawn over: the first that has a grid."""
    return next(iter(_gridded(kind, name)), None)


def candidates(kind: Kind, wait: parts.Part, scale: Scale) -> Iterator[dict[str, Any]]:
    """A rule as the part says, if that is all of it, and with every value of its grids instead.

    Raises ValueError for a rule with a parameter that neither the part nor a grid knows.
    """
    spec = parts.spec(wait)
    grids = _gridded(kind, spec["name"])
    missing = _required(kind, spec["name"]).keys() - spec.keys()
    if not missing:
        yield spec
    if missing - grids.keys():
        needed = ", ".join(sorted(missing - grids.keys()))
        raise ValueError(f"wait {spec['name']!r}: nothing says which {needed} to weigh; give it")
    values = [made(scale) for made in grids.values()]
    for chosen in product(*values) if grids else ():
        yield spec | dict(zip(grids, chosen, strict=True))


def _gridded(kind: Kind, name: str) -> dict[str, Callable[[Scale], list]]:
    own = kind.parameters(name)
    needed = _required(kind, name)
    return {key: GRIDS[key][0] for key in own if key in GRIDS and (key in needed or GRIDS[key][1])}


def _required(kind: Kind, name: str) -> Mapping[str, inspect.Parameter]:
    return {
        key: one
        for key, one in kind.parameters(name).items()
        if key not in kind.offered and one.default is one.empty and one.kind is one.KEYWORD_ONLY
    }
