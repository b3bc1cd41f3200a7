"""Addresses of contributions in an exchange: the version and the counter of the schedule."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce
from algorithms.base import Details, scale_by_samples
from runtimes.mesh import Mesh
from runtimes.simulate import Simulator
from stragglers import delays, processes
from stragglers.inject import Injector
from tests import planned
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, losses

N, M, ROOM = 4, 3, 64  # workers, mini-batches, updates that a log can hold


class Log(NamedTuple):
    """The exchange's state: what a worker was handed, update by update."""

    count: jax.Array  # [] int32
    entries: jax.Array  # [ROOM, 3] int32: worker, version, first


def logging():
    """All-reduce SGD whose workers write down what they are handed."""
    method = all_reduce(scale_by_samples(0.02))

    def update_fn(updates, state, params=None, *, worker, version, first, **extra):
        entry = jnp.stack([jnp.asarray(a, jnp.int32) for a in (worker, version, first)])
        updates, _ = method.exchange.update(updates, optax.EmptyState(), params, **extra)
        return updates, Log(state.count + 1, state.entries.at[state.count].set(entry))

    exchange = optax.GradientTransformationExtraArgs(
        lambda params: Log(jnp.int32(0), jnp.zeros((ROOM, 3), jnp.int32)), update_fn
    )
    return method._replace(exchange=exchange, details=Details())


def agree(log, schedule):
    """Return whether every worker was handed the addresses of its rows."""
    assert (schedule.first > 0).any() and (schedule.version > 0).any()
    for worker in range(N):
        rows, positions = np.nonzero(schedule.workers == worker)
        columns = (a[rows, positions] for a in (schedule.version, schedule.first))
        expected = np.stack([np.full(len(rows), worker), *columns], axis=1)
        assert log.count[worker] == len(rows)
        np.testing.assert_array_equal(log.entries[worker, : len(rows)], expected)


def test_the_simulator_hands_on_what_the_schedule_says():
    rule = planned.rule("k_async", delays.exponential(0.3), N, 1, 3, k=2)
    runtime = Simulator(logging(), losses, DATA, SAMPLES, rule, mini_batches=1)
    run, schedule = runtime.advance(runtime.start(X0), np.inf, 25)
    agree(runtime.memory(run), schedule)


@pytest.mark.parametrize("leftovers", ["carry", slow("drop")])
def test_a_mesh_hands_on_what_it_writes_down(leftovers):
    """Over several dispatches, and after going on from what was packed."""

    def mesh():
        """Worker 0 is four times slower, the others finish first."""
        law = processes.persistent(delays.deterministic(0.004), {0: 4.0})
        rule = planned.rule("first_finisher", law, N, M, leftovers=leftovers)
        return Mesh(
            logging(), losses, DATA, SAMPLES, workers=N, mini_batches=M, rounds_per_dispatch=4,
            injector=Injector(N, rule.trigger, 0, delay=law),
        )  # fmt: skip

    runtime, other = mesh(), mesh()
    run, begun = runtime.advance(runtime.start(X0), np.inf, 7)
    agree(runtime.memory(run), begun)
    if leftovers == "carry":
        assert len(set(begun.first[-1])) > 1
    resumed, _ = other.resume(other.start(np.zeros_like(X0)), runtime.pack(run), [(0.0, 1.0)])
    resumed, schedule = other.advance(resumed, np.inf, 6)
    log = other.memory(resumed)
    assert (log.count == 13).all()
    np.testing.assert_array_equal(np.asarray(log.entries)[:, 7:13, 1], schedule.version.T)
    np.testing.assert_array_equal(np.asarray(log.entries)[:, 7:13, 2], schedule.first.T)
