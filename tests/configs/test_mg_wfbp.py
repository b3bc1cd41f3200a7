"""The sweep of buckets, and what it claims."""

import numpy as np
import pytest

from configs import mg_wfbp
from experiments import executors, profiling, sweep, tasks

SMALL = {"task": "digits(model={'name': 'mlp', 'hidden': [8, 8]})", "updates": 3}


@pytest.fixture
def arms(tmp_path):
    """As `claims` gets them, with a profile that was saved."""
    task = tasks.build(SMALL["task"])
    layers = profiling.backward_order(task, 16)
    path = tmp_path / "profile.json"
    profiling.save(
        path,
        profiling.Profile(layers, 1e-3 * np.arange(1.0, 4), np.array([0, 1e6]), np.array([1, 2.0])),
    )
    return [
        {
            "name": name,
            "config": sweep.override(
                mg_wfbp.get_config(), changes | SMALL | {"profile": str(path)}
            ),
        }
        for name, changes in mg_wfbp.sweep()
    ]


@pytest.mark.slow
def test_claims_tell_which_parameters_are_those_of_pmean(arms, tmp_path):
    by_name = {arm["name"]: arm["config"] for arm in arms}
    by_name["single"].seed = 1
    chosen = [executors.Arm(name, by_name[name]) for name in ("pmean", "optimal", "single")]
    for arm in chosen:
        arm.config.name = arm.path
    how = {name: getattr(mg_wfbp, name) for name in ("claims", "numbers")}
    outcome = sweep.launch(chosen, tmp_path / "runs", False, **how)
    ((claim, text),) = outcome.claims
    assert claim.startswith("buckets change no result, bit for bit (arXiv 1811.11141")
    assert text == "does not hold: another result than pmean after 3 updates: single"
    (plans,) = outcome.numbers
    assert [row[:2] for row in plans.rows][1] == ("single", "1")
    assert plans.title == (
        "predicted from the profile: measured: backward pass 3.000 ms, all-reduce 1000.000 ms and "
        "1e+03 ns a byte (R^2 1.00, off by up to 0%)"
    )
