"""Compressing methods train: on logistic regression, simulated and on eight devices."""

import functools

import jax
import numpy as np
import optax
import pytest

from algorithms import all_reduce, s2_reducer
from runtimes import mesh, simulate
from stragglers import delays
from tests import planned
from tests.algorithms.compressed import ALL, ROWS, SGD, N


def losses(params, examples):
    """Logistic regression on the sum of a few rows of a table."""
    rows = params["table"]["embedding"][examples["words"]].sum(1)
    scores = rows @ params["head"]["kernel"] + params["last"]["bias"]
    return jax.nn.softplus(-examples["label"] * scores)


class Sampler:
    batch_size = 4

    def indices(self, workers, counters):
        position = np.asarray(counters)[..., None] * 4 + np.arange(4)
        return ((position + 17 * np.asarray(workers)[..., None]) % 96).astype(np.int32)


def examples():
    rng = np.random.default_rng(0)
    words = rng.integers(0, ROWS, (96, 3)).astype(np.int32)
    secret = rng.standard_normal(ROWS)
    return {"words": words, "label": np.sign(secret[words].sum(1)).astype(np.float32)}


MODEL = {
    "table": {"embedding": np.zeros((ROWS, 2), np.float32)},
    "head": {"kernel": np.ones(2, np.float32)},
    "last": {"bias": np.float32(0)},
}


def trained(method, updates=60, losses=losses):
    waiting = planned.rule("first_finisher", delays.exponential(1.0), N, 2, 0)
    data = examples()
    runtime = simulate.Simulator(method, losses, data, Sampler(), waiting, mini_batches=2)
    state, schedule = runtime.advance(runtime.start(MODEL), np.inf, updates)
    model = jax.tree.map(lambda a: a[0], runtime.models(state))
    return model, runtime.memory(state), schedule


def mean_loss(model):
    return float(losses(model, examples()).mean())


@pytest.mark.slow
def test_s2_trains_without_blocking_and_in_planned_buckets():
    """As well as the dense method, and its exact variant exactly as well.

    Mini-batches add up in a loop, after which all buckets are ready at once, and it is said so.
    """
    optimizer = optax.sgd(0.5)
    dense, _, schedule = trained(all_reduce(optimizer))
    assert schedule.batches.min() < schedule.batches.max()
    assert mean_loss(dense) < 0.5 * np.log(2)
    with pytest.warns(UserWarning, match="all buckets are ready at once"):
        sketched, *_ = trained(s2_reducer(optimizer, rows=3, ratio=0.9, buckets="wfbp"))
    assert mean_loss(sketched) < 1.1 * mean_loss(dense)
    method = s2_reducer(optimizer, exact=True, ratio=1.0, buckets="fixed:1kB")
    exact, memory, _ = trained(method)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), exact, dense)
    assert method.metrics(memory)["fallbacks"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s2_reducer", "powersgd", "sketched_sgd"])
def test_methods_train_on_eight_devices(name):
    """The loss comes down from log 2 = 0.69."""
    method, data = ALL[name](), examples()
    runtime = mesh.Mesh(
        method, losses, data, Sampler(), workers=8, mini_batches=1, rounds_per_dispatch=20
    )
    state, _ = runtime.advance(runtime.start(MODEL), np.inf, 60)
    assert mean_loss(jax.tree.map(lambda a: np.asarray(a[0]), runtime.models(state))) < 0.67


@pytest.mark.slow
def test_losses_that_draw_see_the_samples_before_the_update():
    """The third argument is equal on all workers, and grows from update to update."""

    def drawn(params, examples, samples):
        rows = params["table"]["embedding"][examples["words"]].sum((1, 2))
        return samples * (params["last"]["bias"] - rows * 0)

    for method in (all_reduce(SGD), s2_reducer(SGD)):
        model, _, schedule = trained(method, updates=3, losses=drawn)
        seen = np.concatenate([[0], schedule.samples_used(Sampler.batch_size)])[:3]
        assert model["last"]["bias"] == pytest.approx(-0.1 * seen.sum())
