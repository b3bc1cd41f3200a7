"""The spine carries methods that it has never heard of: two toys, touching no runtime code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms.base import AXIS, Algorithm, freeze_when_idle, scale_by_samples
from runtimes import simulate
from stragglers import delays
from stragglers.rules.replay import recorded
from stragglers.schedule import Schedule
from tests import planned
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, D, gradient, losses

N, M = 8, 3
UPDATES = 40


def finished(schedule, t, k):
    """Return indices of the samples that entry k of update t finished."""
    counters = schedule.first[t, k] + np.arange(schedule.batches[t, k])
    return SAMPLES.indices(schedule.workers[t, k], counters).ravel()


def run_simulated(method, rule, mini_batches=M, updates=UPDATES):
    runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=mini_batches)
    state = runtime.start(X0)
    rows = []
    for count in (7, 1, updates):  # in segments: the same as at once
        state, schedule = runtime.advance(state, np.inf, min(count, updates - state.update))
        rows.append(schedule)
    return np.asarray(runtime.models(state)), rows


def barrier():
    return planned.plan("barrier", delays.exponential(1.0), N, UPDATES, M, 0)


# --- a local method whose gradients are taken elsewhere: push-sum on a directed ring ---


def push_sum_toy(rate=0.05):
    """Half of everything goes to the next worker; gradients at the de-biased x / weight."""
    to_next = [(i, (i + 1) % N) for i in range(N)]

    def half_from_previous(a):
        # Worker 0 gives a quarter only, so that the weights differ between workers.
        share = jnp.where(jax.lax.axis_index(AXIS) == 0, 0.25, 0.5)
        return (1 - share) * a + jax.lax.ppermute(share * a, AXIS, to_next)

    def update_fn(updates, state, params, **extra):
        stepped = params - rate * updates
        return half_from_previous(stepped) - params, half_from_previous(state)

    return Algorithm(
        exchange=optax.GradientTransformationExtraArgs(lambda params: jnp.ones(()), update_fn),
        grad_params=lambda weight, params: params / weight,
    )


# --- an asynchronous schedule: stale reads, one worker twice in an update ---


def asynchronous_schedule(k=3):
    """Workers deliver in random order, some twice in one update, each at what it last read."""
    rng = np.random.default_rng(5)
    who = rng.integers(0, N, (UPDATES, k)).astype(np.int32)
    who[:, 1] = np.where(np.arange(UPDATES) % 4 == 0, who[:, 0], who[:, 1])
    held, taken = np.zeros(N, np.int32), np.zeros(N, np.int64)
    version, first = np.empty_like(who), np.empty(who.shape, np.int64)
    for t in range(UPDATES):
        for j, worker in enumerate(who[t]):
            version[t, j], first[t, j] = held[worker], taken[worker]
            taken[worker] += 1
            held[worker] = t  # fetches at once: the version before this update
        held[who[t, -1]] = t + 1  # the last one completes the update and reads the new version
    finish = np.broadcast_to(np.arange(1.0, UPDATES + 1)[:, None], who.shape)
    return Schedule(
        time=finish[:, 0], workers=who, start=finish - 1, finish=finish, batches=np.ones_like(who),
        first=first, version=version, busy=np.ones(who.shape), communication=np.zeros(who.shape),
    )  # fmt: skip


def mean_exchange():
    def update_fn(updates, state, params=None, *, weight=None, **extra):
        if weight is None:
            return jax.lax.pmean(updates, AXIS), state
        return jax.lax.psum(updates * weight, AXIS) / jax.lax.psum(weight, AXIS), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def stale_toy():
    return Algorithm(
        exchange=mean_exchange(),
        server=freeze_when_idle(optax.chain(optax.trace(0.9), scale_by_samples(0.02))),
    )


def test_an_asynchronous_schedule_is_replayed_exactly():
    schedule = asynchronous_schedule()
    assert schedule.staleness.max() > 3
    assert any(len(set(row)) < len(row) for row in schedule.workers.tolist())
    versions, velocity = [X0.astype(np.float64)], np.zeros(D)
    for t in range(UPDATES):
        g = np.mean(
            [
                gradient(versions[schedule.version[t, j]], finished(schedule, t, j))
                for j in range(schedule.workers.shape[1])
            ],
            axis=0,
        )
        velocity = 0.9 * velocity + g
        versions.append(versions[-1] - 0.02 * velocity)
    simulated, rows = run_simulated(stale_toy(), recorded(schedule), mini_batches=1)
    assert sum(r.updates for r in rows) == UPDATES
    np.testing.assert_allclose(simulated[0], versions[-1], rtol=2e-4, atol=2e-5)


# --- one worker axis over many devices ---


@pytest.mark.parametrize(
    "toy, schedule, mini_batches",
    [slow(push_sum_toy, barrier(), M), (stale_toy, asynchronous_schedule(8), 1)],
)
def test_a_sharded_worker_axis_gives_the_same_trajectory(toy, schedule, mini_batches):
    rule = recorded(schedule)
    build = functools.partial(
        simulate.Simulator, toy(), losses, DATA, SAMPLES, rule, mini_batches=mini_batches
    )
    models = []
    for devices in (1, 8):
        runtime = build(devices=devices)
        state, _ = runtime.advance(runtime.start(X0), np.inf)
        models.append(np.asarray(runtime.models(state)))
    np.testing.assert_allclose(models[0], models[1], rtol=1e-5, atol=1e-6)
