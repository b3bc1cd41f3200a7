import numpy as np
import pytest

from configs import heterogeneous
from experiments import prepare, sweep, train
from experiments.registry import part

ARMS = dict(heterogeneous.sweep(heterogeneous.get_config()))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [16, 64])
def test_every_method_can_run_on_its_graph(workers):
    config = heterogeneous.get_config(f"workers={workers}")
    arms = dict(heterogeneous.sweep(config))
    assert ("exact_diffusion/base_2/rate=0.2" in arms) == (workers == 16)  # refused beyond
    first = {name.rpartition("/")[0]: name for name in reversed(arms)}
    for name in first.values():
        prepared = prepare.prepare(sweep.override(config, arms[name] | {"name": name}))
        assert prepared.algorithm.graph.number_of_nodes() == workers


@pytest.mark.slow
def test_text_has_methods_and_rates_of_its_own():
    config = heterogeneous.get_config("task=text,workers=8")
    config.task.corpus = part("python", files=40)
    arms, task = dict(heterogeneous.sweep(config)), None
    groups = {name.rpartition("/")[0] for name in arms}
    assert groups == set(heterogeneous.TEXT_RATES) < set(heterogeneous.RATES)
    for group, rates in heterogeneous.TEXT_RATES.items():
        name = f"{group}/rate={rates[0]}"
        prepared = prepare.prepare(sweep.override(config, arms[name] | {"name": name}), task)
        task = prepared.task
    assert len(np.unique(task.labels)) > 8  # packages, which a Dirichlet split deals unevenly
    with pytest.raises(ValueError, match="unknown task 'novels'; known tasks: digits, text"):
        heterogeneous.get_config("task=novels")


@pytest.mark.slow
def test_all_arms_send_about_the_same(tmp_path):
    """Of 24 models each; a method that sends two makes half the updates."""
    config = heterogeneous.get_config("models=24,workers=8")
    config.task = part("digits", model="logistic")
    sent, updates = {}, {}
    for name in ("dpsgd/ring", "gradient_tracking/ring", "dpsgd/base_2"):
        group = next(arm for arm in ARMS if arm.startswith(name))
        summary = train.run(sweep.override(config, ARMS[group] | {"name": name}), tmp_path / name)
        sent[name], updates[name] = summary["bytes_per_worker"], summary["updates"]
    assert max(sent.values()) <= 1.2 * min(sent.values())
    assert updates["dpsgd/base_2"] == pytest.approx(2 * updates["dpsgd/ring"], rel=0.1)
    assert updates["gradient_tracking/ring"] == pytest.approx(updates["dpsgd/ring"] / 2, rel=0.2)
