"""Seconds of a program, measured one way wherever they are published.

Programs that are compared take turns in one process, so that a host that is busy for a while slows
all of them. What else a host does only ever adds to a time, so that the slower half of the runs
tells of the host and the faster half of the program. The mean of the faster half is steadier than
the minimum, which falls the longer one measures, and is lifted less than the median, whose rank
among the undisturbed runs rises with every run that is disturbed.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import jax
import numpy as np

LEAST = 3  # turns, whatever the budget

Name = TypeVar("Name", bound=Hashable)


def seconds(
    programs: Mapping[Name, Callable[[], object]], turns: int = 9, *, warm_ups: int = 1,
    budget: float = np.inf,
) -> dict[Name, float]:  # fmt: skip
    """Return the seconds of each program: the mean of the faster half of its runs.

    A program returns the arrays to wait for, and runs once in each of `turns`, whose order is
    reversed from turn to turn. The first `warm_ups` runs of each are not counted. After `budget`
    seconds no further turn begins, but at least three are taken. Where several processes measure
    together, all must do so without a budget.
    """
    for run in programs.values():
        for _ in range(warm_ups):
            jax.block_until_ready(run())
    taken = {name: [] for name in programs}
    opened = time.perf_counter()
    for turn in range(turns):
        if turn >= LEAST and time.perf_counter() - opened > budget:
            break
        for name in list(programs)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            jax.block_until_ready(programs[name]())
            taken[name].append(time.perf_counter() - began)
    return {
        name: float(np.mean(np.sort(times)[: (len(times) + 1) // 2]))
        for name, times in taken.items()
    }
