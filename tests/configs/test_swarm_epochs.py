"""SwarmSGD with more and fewer epochs: arms of a length see equal samples."""

import pytest

from configs import swarm_epochs
from experiments import sweep, train

CONFIG = swarm_epochs.get_config()
ARMS = dict(swarm_epochs.sweep(CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["all_reduce", "swarm/H=1", "swarm/H=4"])
def test_arms_of_a_length_see_equal_samples_under_a_rate_that_falls_over_them(method, tmp_path):
    name = f"{method}/batches={swarm_epochs.LENGTHS[0]}"
    changes = ARMS[name] | {"name": name, "task": "synthetic_logistic(samples=256, dimension=4)"}
    summary = train.run(sweep.override(CONFIG, changes), tmp_path)
    samples = 16 * 8 * swarm_epochs.LENGTHS[0]
    assert summary["samples"] == pytest.approx(samples, rel=0.01)
    assert ARMS[name]["optimizer.schedule"].samples == samples


