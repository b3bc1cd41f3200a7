"""The measurement of all published run times of programs.

Programs that are compared take turns in one process, so that other load on the host slows all of
them. Such load can only lengthen a run. The slower half of the runs thus reflects the host, and the
faster half reflects the program. The mean of the faster half varies less than the minimum, which
falls with the number of runs. Load raises this mean less than the median: each slowed run raises
the median's rank among the undisturbed runs.
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

    A program returns the arrays to wait for, and runs once in each of the `turns`. The order of the
    programs is reversed from turn to turn. Each program first has `warm_ups` runs that do not
    count. After `budget` seconds no further turn begins, except for the first three turns. If
    several processes measure together, none of them may have a budget.
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
