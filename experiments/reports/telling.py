"""Which arms tell most, where a figure has room for some of them only."""

import math
from collections.abc import Mapping, Sequence

from experiments.aggregates import at_target

MOST_ARMS = 8  # as many curves as a reader can tell apart in one figure
MOST_DRAWN = 60  # in all still figures of a page; each of them has all these curves

Runs = Sequence[Sequence[Mapping]]  # metrics records of each seed


def method(name: str) -> str:
    """The group that an arm belongs to: its name up to the first "/"."""
    return name.partition("/")[0]


def ranked(curves: Sequence[tuple[str, Runs]], target_loss: float | None) -> list[str]:
    """The names of all arms: the first of every method at the target, then the others.

    curves: (arm's name, its runs). Both parts are in the order in which arms reach the target. Arms
    that miss it come last, by their loss.
    """
    arrivals = {name: _arrival(runs, target_loss) for name, runs in curves}
    order = sorted(arrivals, key=arrivals.__getitem__)
    best = {method(name): name for name in reversed(order)}
    return sorted(order, key=lambda name: best[method(name)] != name)


def chosen(
    curves: Sequence[tuple[str, Runs]], target_loss: float | None, most: int = MOST_ARMS
) -> list[tuple[str, Runs]]:
    """Return the first `most` of `ranked`, in the order of `curves`."""
    if len(curves) <= most:
        return list(curves)
    names = set(ranked(curves, target_loss)[:most])
    return [curve for curve in curves if curve[0] in names]


def groups(names: Sequence[str]) -> dict[str, list[str]]:
    """A title -> the arms of a small figure, at most MOST_ARMS: methods, and single arms together.

    A method with more arms is divided.
    """
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(method(name), []).append(name)
    single = [arms[0] for arms in members.values() if len(arms) == 1]
    found = {title: arms for title, arms in members.items() if len(arms) > 1}
    if single:
        found["methods with one arm"] = single
    divided = {}
    for title, arms in found.items():
        parts = -(-len(arms) // MOST_ARMS)
        for part in range(parts):
            share = arms[part * len(arms) // parts : (part + 1) * len(arms) // parts]
            divided[title if parts == 1 else f"{title}, {part + 1} of {parts}"] = share
    return divided


def _arrival(runs: Runs, target_loss: float | None) -> tuple[float, float]:
    """Sorts arms by their mean time to the target; those that miss it come last, by their loss."""
    seconds = [at_target(run, target_loss) for run in runs]
    losses = [run[-1]["train_loss"] for run in runs]
    last = math.inf if None in losses else max(losses)
    return (math.inf if None in seconds else sum(seconds) / len(seconds), last)
