"""One of the processes that `benchmarks.accelerator` starts, a device each.

    python -m benchmarks.accelerator_process COORDINATOR COUNT RANK

The first one prints the seconds of plain rounds of the mesh and of hand-written ones.
"""

import json
import sys

import jax

from benchmarks import sides
from experiments import distributed, stopwatch

TURNS = 9  # the same on all processes, as they wait for each other


def main(coordinator: str, count: str, rank: str) -> None:
    distributed.initialize(coordinator, int(count), int(rank))
    devices = len(jax.devices())
    task, sampler = sides.task_and_sampler(devices)
    taken = stopwatch.seconds(sides.mesh_sides(task, sampler, devices), TURNS)
    if distributed.is_writer():
        print(json.dumps(taken), flush=True)
    distributed.leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
