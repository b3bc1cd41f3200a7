"""Fair ratios: the candidates take turns in one process, and the medians are compared."""

import time
from collections.abc import Callable, Mapping

import jax
import numpy as np

LEAST = 3  # turns for a median


def seconds(
    candidates: Mapping[str, Callable[[], object]], repeats: int = 9, budget: float = np.inf
) -> dict[str, float]:
    """Median seconds of each candidate; one untimed call each, then `repeats` interleaved ones.

    A candidate returns the arrays to wait for. After `budget` seconds of turns no more are taken,
    but at least three.
    """
    for run in candidates.values():
        jax.block_until_ready(run())
    taken = {name: [] for name in candidates}
    opened = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= LEAST and time.perf_counter() - opened > budget:
            break
        order = list(candidates)
        for name in order if repeat % 2 else order[::-1]:
            began = time.perf_counter()
            jax.block_until_ready(candidates[name]())
            taken[name].append(time.perf_counter() - began)
    return {name: float(np.median(values)) for name, values in taken.items()}
