"""Nodes in processes of their own: what they do is recorded, repeated, and survives a death."""

import os
import signal
import time

import jax
import numpy as np
import pytest
import ray

from runtimes.asynchronous import pool
from runtimes.asynchronous.pool import SESSION, ActorPool
from runtimes.base import WorkersLost
from runtimes.gossip import runtime as gossip_runtime
from stragglers.schedule import concatenate
from tests.runtimes import meeters
from tests.runtimes.meeters import X0, B, H, N

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("actors")]
STARTED = ActorPool.start
DYING, PACKED = {"float32", "blocking"}, {"8 bits", "blocking"}
PATIENCE = 300.0  # s, for a machine that has other things to do


@pytest.fixture(scope="module", autouse=True)
def rays_own():
    """Ray's own processes, for all tests of this module."""
    yield
    SESSION.close()


@pytest.fixture
def meetings():
    """Runtimes whose processes end with the test, however it ends.

    Processes that a test leaves behind would take the places of the next one's. One that is killed
    while it starts may be left by Ray itself, which then begins anew.
    """
    made = []

    def make(*arguments, **options):
        made.append(meeters.meetings(*arguments, **options))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()
    until = time.monotonic() + 20
    while ray.is_initialized() and ray.available_resources().get("CPU", 0) < N:
        if time.monotonic() > until:
            SESSION.close()
        time.sleep(0.05)


def held(run):
    """Return the state of all nodes, [workers, ...]: parameters, work and exchange state."""
    nodes = [node[:3] for node in run.states]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *nodes)


def assert_replayed(name, run, schedule):
    schedule.validate()
    simulator = meeters.replayed(name, schedule)
    simulation, _ = simulator.advance(simulator.start(X0), np.inf)
    model = simulation.model
    simulated = (model.params, model.workers.work, model.workers.exchange)
    jax.tree.map(np.testing.assert_array_equal, held(run), simulated)


def assert_counted(name, runtime, run, schedule):
    """What a run says of itself is what its schedule says."""
    assert run.update == schedule.updates
    assert run.samples == schedule.batches.sum() * B
    assert jax.tree.leaves(runtime.models(run))[0].shape == (N, *X0.shape)
    sent = run.measured["sent_bytes_per_worker"]
    sizes = [meeters.message_bytes(name)] * int((schedule.workers[:, 1] < N).sum())
    assert sent * N >= 2 * sum(sizes) > 0  # and what was sent again, or to who was busy


# The other methods repeat what happened before and after a death, and before and after a packing.
@pytest.mark.parametrize("name", sorted({*meeters.METHODS} - DYING - PACKED))
def test_replay_gives_the_same_bits(meetings, name):
    runtime = meetings(name)
    run = runtime.start(X0)
    schedules = []
    for _ in range(2):
        run, schedule = runtime.advance(run, np.inf, 30)
        schedules.append(schedule)
    schedule = concatenate(schedules)
    assert run.update >= 60
    assert_counted(name, runtime, run, schedule)
    assert_replayed(name, run, schedule)


@pytest.mark.parametrize(
    ("name", "sent", "own"),
    [
        *((name, signal.SIGKILL, False) for name in sorted(DYING)),
        ("float32", signal.SIGSTOP, False),
        ("8 bits", signal.SIGKILL, True),
    ],
)
def test_a_node_that_dies_or_hangs_begins_anew(meetings, name, sent, own, monkeypatch):
    """From a neighbour or from its own model at the last evaluation, and replay repeats it."""
    monkeypatch.setattr(pool, "SILENCE", 3.0)
    runtime = meetings(name, own_model=own)
    run, first = runtime.advance(runtime.start(X0), np.inf, 40)
    assert_counted(name, runtime, run, first)
    coordinator = runtime._coordinator
    victim = coordinator._pool.place(2).pid
    os.kill(victim, sent)
    alive, until = [first], time.monotonic() + PATIENCE
    while time.monotonic() < until:
        run, schedule = runtime.advance(run, run.seconds + 1.0)
        alive += [] if schedule is None else [schedule]
        found = concatenate(alive)
        again = found.time > max((event.time for event in found.events), default=np.inf)
        if (found.workers[again] == 2).sum() > 5:
            break
        time.sleep(0.1)
    kinds = [(event.kind, event.worker) for event in found.events]
    assert kinds == [("lost", 2), ("restored", 2)]
    assert found.events[1].source in ((2,) if own else (1, 3))
    (again,) = np.flatnonzero(found.restored[:, 0] >= 0)
    version = found.version[again, 0]  # the last evaluation may have been just before
    assert version <= again if own else version == again
    assert run.measured["deaths"] == 1 and (0 < run.measured["sum_moved"] < 1) == (not own)
    assert run.measured["nodes"] == N
    assert_replayed(name, run, found)
    for node in range(N):  # each mini-batch once, none skipped
        mine = (found.workers == node) & (found.batches > 0)
        assert found.first[mine].tolist() == [*range(0, H * mine.sum(), H)]


def test_a_node_that_returns_while_another_one_is_away_meets_the_rest(meetings):
    runtime = meetings("float32")
    run, first = runtime.advance(runtime.start(X0), np.inf, 40)
    coordinator, pieces = runtime._coordinator, [first]
    for victim in (2, 0):
        os.kill(coordinator.pids()[victim], signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while victim in coordinator.pids():
            assert time.monotonic() < until, "its death is not noticed"
            time.sleep(0.01)
    for _ in range(3):  # an evaluation waits for all of them
        run, schedule = runtime.advance(run, run.seconds + 1.0)
        pieces += [] if schedule is None else [schedule]
    assert run.measured["deaths"] == 2
    assert_replayed("float32", run, concatenate(pieces))


def nobody_comes(actors, member, *ready):
    """As where the cluster has no room for another process."""


def nobody_stays(actors, member, *ready):
    """As where there is no memory for the process."""
    STARTED(actors, member, *ready)
    ray.kill(actors.handle(member))


@pytest.mark.parametrize("start", [nobody_comes, nobody_stays])
def test_a_run_goes_on_without_a_node_that_cannot_come_back(meetings, start, monkeypatch):
    """Down to as many as there must be; evaluations do not wait for it."""
    for module in (gossip_runtime, pool):
        monkeypatch.setattr(module, "MISSED", 2.0)
    runtime = meetings("float32", least_workers=3)
    run, first = runtime.advance(runtime.start(X0), np.inf, 40)
    monkeypatch.setattr(ActorPool, "start", start)
    os.kill(runtime._coordinator.pids()[2], signal.SIGKILL)
    pieces = [first]
    until = time.monotonic() + PATIENCE
    while run.measured["nodes"] == N and time.monotonic() < until:
        run, schedule = runtime.advance(run, run.seconds + 0.5)
        pieces += [] if schedule is None else [schedule]
    assert run.measured["nodes"] == 3
    at_work, until = set(), time.monotonic() + PATIENCE
    while at_work != {0, 1, 3} and time.monotonic() < until:  # one may still wait for who is gone
        run, schedule = runtime.advance(run, np.inf, 30)
        pieces.append(schedule)
        at_work |= set(schedule.workers[schedule.batches > 0].tolist())
    assert at_work == {0, 1, 3}
    found = concatenate(pieces)
    assert jax.tree.leaves(runtime.models(run))[0].shape == (3, *X0.shape)
    assert len(run.states) == N
    assert_replayed("float32", run, found)
    os.kill(runtime._coordinator.pids()[1], signal.SIGKILL)
    with pytest.raises(WorkersLost, match=r"(only 2 of 4 workers are left|has died 5 times)"):
        runtime.advance(run, np.inf, 100_000)


@pytest.mark.parametrize("name", sorted(PACKED))
def test_a_run_goes_on_from_what_it_has_packed(meetings, name):
    runtime = meetings(name)
    run, before = runtime.advance(runtime.start(X0), np.inf, 30)
    assert_counted(name, runtime, run, before)
    packed = runtime.pack(run)
    runtime.close()
    later = meetings(name)
    resumed, happened = later.resume(later.start(X0), packed, [(0.0, 1.0)])
    assert happened is None
    assert (resumed.update, resumed.samples) == (run.update, run.samples)
    assert resumed.measured == run.measured and run.measured["sent_bytes_per_worker"] > 0
    jax.tree.map(np.testing.assert_array_equal, later.models(resumed), runtime.models(run))
    resumed, after = later.advance(resumed, np.inf, 30)
    whole = concatenate([before, after])
    assert resumed.update >= 60
    assert_counted(name, later, resumed, whole)
    assert_replayed(name, resumed, whole)


def test_a_node_that_diverges_ends_the_run(meetings):
    runtime = meetings("diverging")
    with pytest.raises(RuntimeError, match=r"is not finite .*bad_contribution='drop'"):
        runtime.advance(runtime.start(X0), np.inf, 1000)
