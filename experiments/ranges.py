"""Sizes and seconds of an arm that its entries allow, but this machine or its clock does not."""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from algorithms import Algorithm
from comms import cost
from experiments import limits, parts
from stragglers import processes

SHORTEST_DELAY = 1e-9  # s
LOOKED_AT = 64  # mini-batches of a worker, for what is usual


def check_memory(config: ConfigDict, algorithm: Algorithm, shapes: Any) -> None:
    """Raise ValueError where models, or one worker's mini-batches, cannot fit into memory."""
    held = cost.payload_bytes(shapes)
    if algorithm.own_models:
        held *= config.workers  # a model each
    whose = f"of {config.workers} workers with one each" if algorithm.own_models else "of all"
    limits.check_memory(held, f"the model {whose}", "choose a smaller one, or fewer workers")
    # The indices of its samples, before the samples themselves are looked up.
    indices = 4.0 * config.batch_size * int(np.max(config.mini_batches))
    limits.check_memory(
        indices,
        f"a round of a worker, with batch_size={config.batch_size} and mini_batches="
        f"{int(np.max(config.mini_batches))},",
        "lower one of them",
    )


def check_delay(config: ConfigDict, process: processes.Process) -> None:
    """Raise ValueError for delays that a clock in float64 seconds cannot tell from none."""
    if process.workers > config.workers:
        raise ValueError(
            f"delay {parts.text(config.delay)!r}: names worker {process.workers - 1}, but there "
            f"are {config.workers} workers, from 0 to {config.workers - 1}; leave it out"
        )
    # Some processes do not know for how many workers they are before they are asked.
    seeded = process.seeded(config.seed)
    seeded.duration(config.workers - 1, 0.0)
    usual = float(np.median(seeded.duration(0, 0.0, np.arange(LOOKED_AT))))
    counts = config.updates * float(np.max(config.mini_batches))
    horizon = min(float(config.seconds), counts * usual)
    if not usual >= max(SHORTEST_DELAY, horizon * np.finfo(np.float64).eps):
        raise ValueError(
            f"delay {parts.text(config.delay)!r}: a mini-batch usually takes {usual:.3g} s, which "
            f"a clock that runs to {horizon:.3g} s cannot tell from nothing; delays are in "
            f"seconds, {SHORTEST_DELAY} or more"
        )
