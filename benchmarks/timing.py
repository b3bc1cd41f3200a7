"""Fair ratios: the candidates take turns in one process, and the medians are compared."""

import time
from collections.abc import Callable, Mapping

import jax
import numpy as np


def seconds(candidates: Mapping[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median seconds of each candidate; one untimed call each, then `repeats` interleaved ones.

    A candidate returns the arrays to wait for.
    """
    for run in candidates.values():
        jax.block_until_ready(run())
    taken = {name: [] for name in candidates}
    for repeat in range(repeats):
        order = list(candidates)
        for name in order if repeat % 2 else order[::-1]:
            began = time.perf_counter()
            jax.block_until_ready(candidates[name]())
            taken[name].append(time.perf_counter() - began)
    return {name: float(np.median(values)) for name, values in taken.items()}
