"""A server and models of the workers' own: what is adopted, on both runtimes, and at what cost."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms.base import AXIS, Algorithm, Parted
from runtimes import mesh, simulate
from stragglers import delays
from stragglers.rules.replay import recorded
from tests import planned
from tests.runtimes import free
from tests.runtimes.toy import DATA, SAMPLES, X0, D, gradient, losses

N, M, UPDATES, RATE = 8, 2, 20, 0.05


def a_quarter(own, served, state, version):
    """Return a worker's model with a quarter of the way to the server's."""
    return own + (served - own) / 4


def toy(adopt, rate=RATE):
    """Every worker steps on its own; the mean distance to the server's model is its gradient."""

    def update_fn(updates, state, params, *, current, batches, **extra):
        live, there = params - rate * updates, jnp.float32(batches > 0)
        off = jax.lax.psum(there * (current - live), AXIS) / jax.lax.psum(there, AXIS)
        return Parted(off, -rate * updates), state

    exchange = optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)
    return Algorithm(exchange=exchange, server=optax.sgd(0.7, 0.9, nesterov=True), adopt=adopt)


def by_hand(schedule):
    """(server's model, own models) in NumPy."""
    served, velocity = X0.astype(float), np.zeros(D)
    own, versions = np.tile(served, (N, 1)), [served]
    for t in range(schedule.updates):
        who = schedule.workers[t][schedule.workers[t] < N]
        for j, i in enumerate(who):
            own[i] = a_quarter(own[i], versions[schedule.version[t, j]], (), 0)
            counters = schedule.first[t, j] + np.arange(schedule.batches[t, j])
            own[i] -= RATE * gradient(own[i], SAMPLES.indices(i, counters))
        off = served - own[who].mean(0)
        velocity = 0.9 * velocity + off
        served = served - 0.7 * (off + 0.9 * velocity)
        versions.append(served)
    return served, own


def test_both_runtimes_do_what_is_done_by_hand():
    """The server's model is the one that is looked at; each worker goes on from its own."""
    rule = planned.rule("barrier", delays.exponential(1.0), N, M)
    method = toy(a_quarter)
    simulator = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=M)
    state = simulator.start(X0)
    for count in (7, UPDATES):
        state, _ = simulator.advance(state, np.inf, count - state.update)
    again, _ = simulator.resume(simulator.start(X0), simulator.pack(state), [(0.0, 0.0)])
    jax.tree.map(np.testing.assert_array_equal, again.model, state.model)
    served, own = np.asarray(simulator.models(state)), np.asarray(state.model.params)
    expected = by_hand(planned.plan("barrier", delays.exponential(1.0), N, UPDATES, M))
    np.testing.assert_allclose(served, expected[0][None], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(own, expected[1], rtol=1e-3, atol=1e-4)
    on_mesh = mesh.Mesh(method, losses, DATA, SAMPLES, workers=N, mini_batches=M)
    run, _ = on_mesh.advance(on_mesh.start(X0), np.inf, UPDATES)
    np.testing.assert_allclose(on_mesh.models(run), served, rtol=1e-4, atol=1e-5)
    adopted = a_quarter(own, served, (), 0)
    np.testing.assert_allclose(run.model.params, adopted, rtol=1e-4, atol=1e-5)
    again, _ = on_mesh.resume(on_mesh.start(X0), on_mesh.pack(run), [])
    jax.tree.map(np.testing.assert_array_equal, again.model, run.model)


@pytest.mark.slow
def test_who_begins_anew_begins_at_the_servers_model():
    schedule = planned.plan("k_async", delays.exponential(1.0), N, UPDATES, M, k=2)
    restored = np.full(schedule.workers.shape, -1, np.int32)
    restored[-1] = 0
    schedule.version[-1] = UPDATES - 1  # whoever begins anew reads the newest version
    method = toy(lambda own, served, state, version: own, 0.01)
    runtime = simulate.Simulator(
        method, losses, DATA, SAMPLES, recorded(dataclasses.replace(schedule, restored=restored)),
        mini_batches=M,
    )  # fmt: skip
    state, _ = runtime.advance(runtime.start(X0), np.inf, UPDATES - 1)
    (began,) = np.asarray(runtime.models(state))
    state, _ = runtime.advance(state, np.inf, 1)
    for j, i in enumerate(schedule.workers[-1]):
        counters = schedule.first[-1, j] + np.arange(schedule.batches[-1, j])
        stepped = began - 0.01 * gradient(began, SAMPLES.indices(i, counters))
        np.testing.assert_allclose(state.model.params[i], stepped, rtol=1e-4, atol=1e-5)


def test_asynchronous_workers_wait_for_the_update_that_changes_their_models():
    """If their own contribution alone does that, they may go on before."""
    for method, name, own in (
        ("easgd", "k_async", {"k": 2, "grace": 0.1}),
        ("easgd", "k_batch_async", {"k": 1}),
        ("decoupled_diloco", "quorum_async", {"k": 1}),
    ):
        assert free.actors(method, name, **own).start(X0).update == 0
    with pytest.raises(ValueError, match="a worker may go on before; take another waiting rule"):
        free.actors("easgd", "quorum_async", k=1).start(X0)
