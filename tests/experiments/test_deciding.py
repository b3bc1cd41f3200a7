"""Parameters that a method leaves to a gradient: decided before the run, and recorded."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import s2_reducer
from comms.messages import Row, collective_bytes
from configs import s2_reducer as config_of_s2
from experiments import prepare, records, sweep, tasks, train
from experiments.tasks import sampling
from tests.experiments.test_checkpoints import killed

SGD = optax.sgd(0.1)
NETWORK = "network(latency=1e-4, bandwidth=1e8)"
SMALL = "ncf(interactions=identifiers(files=60), width=8, hidden=8)"


def configured(monkeypatch, algorithm, **changes):
    monkeypatch.setitem(config_of_s2.TASKS, "ncf", (SMALL, 4, 0.01, 6))
    return sweep.override(config_of_s2.get_config("task=ncf"), {"algorithm": algorithm} | changes)


def scattered(share, rows=512, width=64, seed=0):
    """Return a gradient of which a share of the elements is not zero, each by itself."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, width)) < share, rng.normal(size=(rows, width)), 0)


def test_rows_are_sketched_where_they_fit_and_elements_where_only_these_do():
    method = s2_reducer(SGD, granularity="auto", ratio=0.18)
    whole = np.zeros((512, 64))
    whole[:40] = 1.0
    dense = np.ones((512, 64))
    for table, expected in ((whole, "row"), (scattered(0.01), "element"), (dense, "row")):
        assert method.decide({"embedding": table}) == {"granularity": expected}
    # The tables count together, other parameters do not.
    mixed = {"embedding": scattered(0.01), "embedding_2": whole, "kernel": dense}
    assert method.decide(mixed) == {"granularity": "element"}
    exact = s2_reducer(SGD, granularity="auto", exact=True, ratio=0.1)
    assert exact.decide({"embedding": scattered(0.01)}) == {"granularity": "element"}


def test_nothing_runs_undecided():
    method = s2_reducer(SGD, granularity="auto")
    table = {"embedding": jnp.ones((4, 2))}
    state = method.exchange.init(table)
    with pytest.raises(ValueError, match=r"parameters that method.decide\(gradient\) returns"):
        method.exchange.update(table, state, samples=0.0, version=0)
    with pytest.raises(ValueError, match="granularity: unknown choice 'cell'"):
        s2_reducer(SGD, granularity="cell")


def test_the_gradient_is_that_of_all_workers_first_update(monkeypatch):
    """Its rows are those that the workers' samples name."""
    config = configured(monkeypatch, "s2_reducer(granularity=auto)", mini_batches=2)
    made = prepare.prepare(config, settled=True)
    assert made.decided and made.algorithm.decide is None
    labels = made.task.labels
    shards = prepare.SPLIT.build(config.split, labels=labels, workers=config.workers, seed=0)
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    gradient = prepare.first_gradient(config, made.task, sampler)
    rows = [(np.asarray(leaf) != 0).any(1).sum() for leaf in jax.tree.leaves(gradient)
            if leaf.ndim == 2 and len(leaf) > 64]  # fmt: skip
    assert rows and all(0 < count <= 4 * 2 * 4 * 8 for count in rows)


@pytest.mark.slow
def test_decisions_and_fallbacks_of_a_run_are_in_its_records(monkeypatch, tmp_path):
    """All that was sent counts as sent; what was planned, and the seconds, stand beside it."""
    own = {"granularity": "auto", "ratio": 0.002, "fallback": "dense"}
    words = ", ".join(f"{name}={value}" for name, value in own.items())
    config = configured(monkeypatch, f"s2_reducer({words})", communication=NETWORK)
    summary = train.run(config, tmp_path)
    assert summary["decided"] == {"granularity": "row"}
    written = json.loads((tmp_path / records.CONFIG).read_text())["algorithm"]
    assert written == {"name": "s2_reducer", **own}
    assert summary["fallback_share"] == 1.0 and summary["fallbacks"] == summary["updates"] == 6
    planned, more = summary["planned_bytes_per_worker"], summary["fallback_bytes"]
    assert summary["bytes_per_worker"] == planned + more and more > 3 * planned
    rows, tables = s2_reducer(SGD, ratio=0.002), prepare.prepare(config).shapes
    said = rows.messages(tables, 4, Row(0))
    assert planned == 6 * sum(collective_bytes(payload, 4) for payload in said)
    assert summary["unresolved"] > 0
    assert summary["fallback_seconds"] == pytest.approx(more / 1e8, rel=0.01)
    first = records.read_metrics(tmp_path)[0]
    assert first["fallback_share"] == first["fallback_bytes"] == 0


@pytest.mark.slow
def test_a_run_that_goes_on_counts_fallbacks_once(monkeypatch, tmp_path):
    config = configured(monkeypatch, "sparse_all_gather(budget=1)", evaluate_every=1.0)

    killed(config, tmp_path / "cut", 4)
    cut = train.run(config, tmp_path / "cut")
    whole = train.run(config, tmp_path / "whole")
    for same in ("bytes_per_worker", "fallback_bytes", "fallback_share", "train_loss"):
        assert cut[same] == whole[same]
    assert whole["fallback_share"] == 1.0 and whole["fallback_seconds"] is None  # no network


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["k_async(k=2)", "k_async(k=2, grace=0.01)"])
def test_the_share_counts_updates_of_a_few_workers(monkeypatch, tmp_path, wait):
    """Two of four workers push to a server, and each of their pushes is too large for its list.

    With a grace rows have room for all.
    """
    config = configured(monkeypatch, "sparcml(budget=1)", wait=wait, delay="exponential(scale=1.0)")
    summary = train.run(config, tmp_path)
    assert summary["fallback_share"] == pytest.approx(1.0)
    if "grace" in wait:
        return
    made = prepare.prepare(config, settled=True)
    tables = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(made.shapes)
        if tasks.row_sparse(made.task, path)
    ]
    dense = sum(4 * leaf.size + 4 for leaf in tables)
    lists = sum(4 + 4 * leaf.shape[1] for leaf in tables)
    assert summary["fallback_bytes"] == pytest.approx(6 * 2 / 4 * (dense - lists))
