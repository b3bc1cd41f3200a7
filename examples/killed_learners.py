"""Decoupled DiLoCo while its learners are killed, and the same run again in the simulator.

    python examples/killed_learners.py

Learners are processes of this machine. A killed one is replaced, the others do not wait, and the
schedule that the run leaves behind gives the same parameters once more, without processes.
"""

import contextlib
import os
import random
import signal
import tempfile

import jax
import numpy as np
from gossax.configs import base
from gossax.experiments.prepare import prepare
from gossax.experiments.registry import part
from gossax.stragglers.schedule import concatenate


def trained(config, updates, kills=0):
    """Return parameters and schedule of kills + 1 parts of `updates`, a learner killed between."""
    prepared = prepare(config)
    rows = []
    with contextlib.closing(prepared.runtime) as runtime:
        state = runtime.start(prepared.task.init(jax.random.key(config.seed)))
        for left in range(kills, -1, -1):
            state, schedule = runtime.advance(state, np.inf, updates)
            rows.append(schedule)
            if left:
                learner, pid = random.choice(sorted(runtime.pids().items()))
                os.kill(pid, signal.SIGKILL)
                print(f"after {state.update} updates: learner {learner} is killed")
        print(f"{state.update} updates in {state.seconds:.1f} s")
        return jax.device_get(runtime.models(state)), concatenate(rows)


if __name__ == "__main__":
    config = base.arm(
        task=part("digits", model="logistic", l2=0.01),
        algorithm="decoupled_diloco",
        wait="quorum_async(k=1, gamma=0.5)",
        runtime="actors",
        workers=4,
        batch_size=8,
        mini_batches=4,  # local steps of a contribution
        optimizer=part("sgd", learning_rate=0.02),
        delay="deterministic(value=0.05)",  # s of a mini-batch
    )
    config.actors = base.actors(least_workers=1)
    models, schedule = trained(config, updates=20, kills=3)
    with tempfile.TemporaryDirectory() as folder:
        schedule.save(f"{folder}/schedule.npz")
        config.runtime, config.wait = "simulate", part("replay", path=f"{folder}/schedule.npz")
        again, _ = trained(config, updates=80)
    off = max(map(lambda a, b: float(abs(a - b).max()), *map(jax.tree.leaves, (models, again))))
    print(f"replayed: parameters differ by {off:.1e} at most")
