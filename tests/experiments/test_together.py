"""Arms that train as one compiled program end as they do alone."""

import json
import shutil

import numpy as np
import pytest

from configs import adasync, nonblocking
from experiments import prepare, records, sweep, train
from runtimes.simulate import Batched
from tests.experiments.test_checkpoints import left


def arms(base, *changes):
    return [sweep.override(base, {"name": f"arm{n}"} | c) for n, c in enumerate(changes)]


def slow_and_stale():
    base = adasync.get_config("rate=0.2")
    base.seconds, base.evaluate_every = 6.0, 2.0
    wait = {"name": "k_async", "k": 1}
    return arms(
        base,
        {"wait": wait, "optimizer.learning_rate": 0.3},
        {"wait": wait | {"name": "k_batch_async", "k": 3}, "delay": "exponential(scale=0.5)",
         "seed": 5},
        {"wait": wait | {"k": 8}, "updates": 3},
    )  # fmt: skip


def gossip():
    base = nonblocking.get_config()
    base.task = "digits(model=logistic)"
    base.algorithm, base.seconds = "dpsgd", 0.9
    return arms(base, {}, {"seed": 3, "optimizer.learning_rate": 0.1, "communication": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize("make", [slow_and_stale, gossip])
def test_together_is_alone_side_by_side(tmp_path, make):
    configs = make()
    assert len({prepare.alike(config) for config in configs}) == 1
    together = train.run_together(configs, [tmp_path / f"a{n}" for n in range(len(configs))])
    for n, config in enumerate(configs):
        alone = train.run(config, tmp_path / f"b{n}")
        for key in ("updates", "samples", "seconds", "bytes_per_worker", "idle_fraction"):
            assert together[n][key] == alone[key]
        assert together[n]["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)
        rows = [records.read_metrics(tmp_path / f"{name}{n}") for name in "ab"]
        assert len(rows[0]) == len(rows[1])
        np.testing.assert_allclose(*([r["test_loss"] for r in row] for row in rows), rtol=1e-4)


@pytest.mark.slow
def test_adaptive_rules_are_told_their_own_losses(tmp_path):
    base = adasync.get_config("rate=0.5")
    base.seconds, base.evaluate_every = 12.0, 2.0
    # With K = 8 some evaluations come before the next update.
    configs = arms(base, {}, {"seed": 1, "wait.interval": 1e9, "wait.k": 8})
    assert len({prepare.alike(config) for config in configs}) == 1
    together = train.run_together(configs, [tmp_path / f"a{n}" for n in range(2)])
    alone = [train.run(config, tmp_path / f"b{n}") for n, config in enumerate(configs)]
    assert [s["updates"] for s in together] == [s["updates"] for s in alone]
    assert [s["seconds"] for s in together] == [12.0] * 2


@pytest.mark.slow
def test_a_smaller_group_rounds_as_the_whole_one(tmp_path, monkeypatch):
    """Arms that have finished keep their place, as the number of runs changes how one rounds."""
    sizes = []

    class Counted(Batched):
        def __init__(self, simulators):
            sizes.append(len(simulators))
            super().__init__(simulators)

    monkeypatch.setattr(train, "Batched", Counted)
    configs = gossip()
    places = [tmp_path / f"a{n}" for n in range(len(configs))]
    first = train.run_together(configs, places)
    whole = left(places[1])
    shutil.rmtree(places[1])
    again = train.run_together(configs, places)
    assert left(places[1]) == whole and sizes == [2, 2]
    assert json.dumps(again[0], sort_keys=True) == json.dumps(first[0], sort_keys=True)


def test_arms_of_other_programs_run_apart():
    base = adasync.get_config()
    other = [
        {"batch_size": 4},
        {"workers": 4},
        {"algorithm": "dc_asgd"},
        {"optimizer.name": "momentum"},
        {"task": "digits(model=mlp)"},
        {"wait": {"name": "k_sync", "k": 1}},
    ]
    assert len({prepare.alike(config) for config in arms(base, {}, *other)}) == 1 + len(other)
    assert prepare.alike(sweep.override(base, {"runtime": "mesh"})) is None
    # The seed of a method that draws by itself is no data.
    for method, programs in (
        ("qsgd", 2), ("local_sgd(exchange=random_k)", 2), ("local_sgd", 1)
    ):  # fmt: skip
        drawing = arms(base, *({"algorithm": method, "seed": seed} for seed in (0, 0, 1)))
        assert len({prepare.alike(config) for config in drawing}) == programs, method
    # Nor are its initial parameters, whose first gradient may decide how it is built.
    begun = ({"algorithm": name, "initial": path} for name in ("qsgd", "top_k") for path in "ab")
    assert len({prepare.alike(config) for config in arms(base, *begun)}) == 3


def test_matcha_counts_its_budget_in_the_seconds_of_the_network():
    """Cheap matchings are active more often, and weights that follow are a program's constants."""
    base = nonblocking.get_config()
    base.task, base.graph = "synthetic_logistic(samples=64, dimension=4)", "matcha(k=0)"
    method = "matcha(budget=0.5, by_seconds=true)"
    slow_worker, equal = "link(seconds=0.1, slow={3: 8})", "link(seconds=0.1)"
    configs = arms(
        base, {"algorithm": method, "communication": slow_worker},
        {"algorithm": method, "communication": equal},
        {"algorithm": method, "communication": 0.1},
        {"algorithm": "matcha(budget=0.5)", "communication": slow_worker},
    )  # fmt: skip
    made = [prepare.prepare(config) for config in configs]
    drawn = [one.algorithm.links.active(0, 2000) for one in made]
    dear = made[0].algorithm.links.partners[:, 3] != 3
    np.testing.assert_array_equal(drawn[1], drawn[3])
    np.testing.assert_array_equal(drawn[2], drawn[3])
    seconds = np.where(dear, 8, 1)
    assert drawn[0].mean(0) @ seconds == pytest.approx(0.5 * seconds.sum(), rel=0.03)
    cheap = [one.mean(0)[~dear].sum() for one in drawn]
    assert cheap[0] > cheap[3] + 0.1
    shared = [prepare.alike(config) for config in configs]
    assert len(set(shared)) == 4
    plain = sweep.override(configs[3], {"communication": equal})
    assert prepare.alike(plain) == shared[3]
