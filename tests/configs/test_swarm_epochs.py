"""SwarmSGD with more and fewer epochs: arms of a length see equal samples, claims say what was."""

import pytest

from configs import swarm_epochs
from experiments import premises, sweep, train
from experiments.studies import swarm_epochs as study
from tests.configs import made_up

CONFIG = swarm_epochs.get_config()
ARMS = dict(swarm_epochs.sweep(CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["all_reduce", "swarm/H=1", "swarm/H=4"])
def test_arms_of_a_length_see_equal_samples_under_a_rate_that_falls_over_them(method, tmp_path):
    name = f"{method}/batches={study.LENGTHS[0]}"
    changes = ARMS[name] | {"name": name, "task": "synthetic_logistic(samples=256, dimension=4)"}
    summary = train.run(sweep.override(CONFIG, changes), tmp_path)
    samples = 16 * 8 * study.LENGTHS[0]
    assert summary["samples"] == pytest.approx(samples, rel=0.01)
    assert ARMS[name]["optimizer.schedule"].samples == samples


def test_claims_ask_for_accuracy_by_length_and_by_local_steps():
    accuracies = dict(zip(study.LENGTHS, (0.93, 0.94, 0.95, 0.955, 0.96), strict=True))
    made = made_up.arms(swarm_epochs)
    for arm in made:
        accuracy = accuracies[int(premises.settings(arm["name"])["batches"])]
        accuracy -= 0.01 * arm["name"].startswith("swarm/H=4")
        accuracy += 0.006 * arm["name"].startswith("all_reduce")
        values = [accuracy - 1e-4, accuracy, accuracy + 1e-4]
        arm |= {"test_accuracy": accuracy, "test_accuracy_by_seed": values, "test_samples": 10_000}
    found = [text.partition(":")[0] for _, text in swarm_epochs.claims(made)]
    good, bad = premises.HOLDS, premises.FAILS
    assert found == [*[good] * 3, *[bad] * 5, bad, good]
    for arm in made:
        arm["test_samples"] = 100
    *_, once, twice = (text for _, text in swarm_epochs.claims(made))
    assert once.startswith(premises.UNKNOWN) and "100 test samples" in twice
