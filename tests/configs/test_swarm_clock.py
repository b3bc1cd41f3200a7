"""The clock of D-PSGD in the sweep of SwarmSGD, against recursions that share no code with it."""

import numpy as np
import pytest

from configs import swarm
from experiments import prepare, sweep
from stragglers.processes import as_process

ROUNDS = 600
MODEL = 4 * 9610  # bytes of the MLP: 64 x 128 + 128 and 128 x 10 + 10 floats
MESSAGE = 2 * (0.001 + MODEL / 4.3e6)  # s, one to either neighbour


def planned_by(name):
    config = sweep.override(swarm.get_config(), dict(swarm.sweep())[name] | {"name": name})
    plans = prepare.prepare(config).runtime.planner
    return plans.skip(plans.start(remembers=True), np.inf, ROUNDS)[1]


def draws(law, nodes):
    return as_process(law).seeded(0).duration(np.arange(nodes)[:, None], 0.0, np.arange(ROUNDS))


def test_d_psgd_beside_the_gradient_and_after_it():
    """60.8 s against 78.5 s for 600 rounds of a ring of 16 nodes."""
    seconds = draws(prepare.build_delay(swarm.get_config().delay), swarm.NODES).T
    hidden, serial = np.zeros(swarm.NODES), np.zeros(swarm.NODES)
    for each in seconds:
        around = np.maximum(np.maximum(np.roll(hidden, 1), np.roll(hidden, -1)), hidden)
        hidden = np.maximum(hidden + each, around + MESSAGE)
        ready = serial + each
        serial = np.maximum(np.maximum(np.roll(ready, 1), np.roll(ready, -1)), ready) + MESSAGE
    for name, expected, about in (
        ("dpsgd/ring", hidden, 60.8),
        ("dpsgd/ring/serial", serial, 78.5),
    ):
        schedule = planned_by(name)
        schedule.validate()
        np.testing.assert_allclose(schedule.finish[-1], expected, rtol=1e-9)
        assert schedule.time[-1] == pytest.approx(about, abs=0.1)
