"""Gossip workers in processes of their own: a replay is equal bit for bit, also after deaths."""

import os
import signal
import time

import jax
import numpy as np
import pytest
import ray

from runtimes.asynchronous import pool
from runtimes.asynchronous.pool import SESSION, ActorPool, Options
from runtimes.base import WorkersLost
from runtimes.gossip.worker import total
from stragglers import delays
from stragglers.schedule import concatenate
from tests.runtimes import meeters
from tests.runtimes.meeters import X0, B, H, N
from tests.runtimes.test_nodes import Together
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow
LAW = delays.exponential(0.08)  # so that nodes leave the processors to those that start


@pytest.fixture(scope="module", autouse=True)
def rays_own():
    """Ray's own processes, for all tests of this module."""
    yield
    SESSION.close()


@pytest.fixture
def meetings():
    """Runtimes whose processes end with the test, however it ends."""
    made = []

    def make(*arguments, **options):
        made.append(meeters.meetings(*arguments, law=LAW, **options))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()


class Under:
    """A run that goes on, and its rows so far."""

    def __init__(self, name, runtime, run, rows):
        self.name, self.runtime, self.run, self.rows = name, runtime, run, rows

    @property
    def pids(self):
        return self.runtime.pids()

    @property
    def schedule(self):
        return concatenate(self.rows)

    @property
    def measured(self):
        return self.runtime.measured(self.run)

    def on(self, seconds=np.inf, updates=np.inf):
        self.run, rows = self.runtime.advance(self.run, self.run.seconds + seconds, updates)
        self.rows += [] if rows is None else [rows]
        return self

    def until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it takes too long"
            self.on(seconds=0.5)

    def meets_again(self, who):
        """Return whether a worker has met others after its last event."""
        happened = [event.time for event in self.schedule.events if event.worker == who]
        again = self.schedule.time > max(happened, default=np.inf)
        return (self.schedule.workers[again] == who).sum() > 5

    def check(self):
        """Replay to the same bits, and compare the counts of the run with its schedule."""
        self.on(updates=(40 - self.schedule.updates) % 64)  # no last turn of a shape of its own
        run, schedule = self.run, self.schedule
        schedule.validate()
        simulator = meeters.replayed(self.name, schedule)
        model = simulator.advance(simulator.start(X0), np.inf)[0].model
        held = jax.tree.map(lambda *a: np.stack(a), *[state[:3] for state in run.states])
        simulated = (model.params, model.workers.work, model.workers.exchange)
        jax.tree.map(np.testing.assert_array_equal, held, simulated)
        assert run.update == schedule.updates
        assert run.samples == schedule.batches.sum() * B
        if not schedule.events:  # a process that dies takes its last counts with it
            size = meeters.message_bytes(self.name) * int((schedule.workers[:, 1] < N).sum())
            sent = self.measured["sent_bytes_per_worker"]
            assert sent * N >= 2 * size > 0  # and what was sent again, or to who was busy
        for node in range(N):  # each mini-batch once, none skipped
            mine = (schedule.workers == node) & (schedule.batches > 0)
            assert schedule.first[mine].tolist() == [*range(0, H * mine.sum(), H)]


def test_a_run_resumes_and_nodes_that_die_or_hang_begin_anew(meetings, monkeypatch):
    """In 8 bits, from what threads had done: one begins from a neighbour, one from its own model.

    The second one is stopped before the first one has its new process.
    """
    monkeypatch.setattr(pool, "SILENCE", 3.0)
    before = Together("8 bits", 60)
    made = before.schedule
    runtime = meetings("8 bits")
    run = runtime.start(X0)._replace(
        states=before.states,
        seconds=float(made.time[-1]),
        update=made.updates,
        samples=int(made.batches.sum()) * B,
        counted=total(*(snapshot.counted for snapshot in before.snapshots)),
    )
    resumed, happened = runtime.resume(runtime.start(X0), runtime.pack(run), [(0.0, 1.0)])
    assert happened is None and resumed.counted == run.counted
    assert (resumed.update, resumed.samples) == (run.update, run.samples)
    under = Under("8 bits", runtime, resumed, [made]).on(updates=40)
    under.check()

    os.kill(under.pids[2], signal.SIGKILL)
    under.until(lambda: len(under.schedule.events) == 2)
    assert under.schedule.events[1].source in (1, 3) and 0 < under.measured["sum_moved"] < 1
    runtime._options = Options(own_model=True)  # for whoever begins anew from now on
    os.kill(under.pids[1], signal.SIGSTOP)
    under.until(lambda: under.meets_again(2) and under.meets_again(1))
    schedule = under.schedule
    assert [(event.kind, event.worker) for event in schedule.events] == [
        ("lost", 2), ("restored", 2), ("lost", 1), ("restored", 1),
    ]  # fmt: skip
    assert schedule.events[3].source == 1 and under.measured["deaths"] == 2
    own = np.flatnonzero(schedule.restored[:, 0] == 1)
    assert (schedule.version[own, 0] <= own).all()  # the last evaluation may have been just before
    under.check()


def test_a_run_goes_on_without_nodes_and_ends_with_too_few(meetings, monkeypatch):
    """One dies as it starts, two at once; then one cannot come back, as where memory is short."""
    start, killed = ActorPool.start, []

    def one_dies(actors, member, *ready):
        reference = start(actors, member, *ready)
        if member == 0 and not killed:  # the others wait for what it compiles
            killed.append(member)
            ray.kill(actors.handle(member))
        return reference

    def missed(seconds):
        monkeypatch.setattr(pool, "MISSED", seconds)

    missed(PATIENCE)
    runtime = meetings("blocking", least_workers=3)
    with monkeypatch.context() as patch:
        patch.setattr(ActorPool, "start", one_dies)
        under = Under("blocking", runtime, runtime.start(X0), []).on(updates=40)
    assert killed and under.measured["deaths"] == 0
    for victim in (2, 0):
        os.kill(under.pids[victim], signal.SIGKILL)
        until(lambda victim=victim: victim not in under.pids, "its death is not noticed")
    for _ in range(2):  # an evaluation waits for all of them
        under.on(seconds=0.5)
    assert under.measured["deaths"] == 2 and under.measured["nodes"] == N
    under.until(lambda: len(under.pids) == N)

    def nobody_stays(actors, member, *ready):
        start(actors, member, *ready)
        ray.kill(actors.handle(member))

    monkeypatch.setattr(ActorPool, "start", nobody_stays)
    missed(2.0)
    os.kill(under.pids[2], signal.SIGKILL)
    under.until(lambda: under.measured["nodes"] == 3)
    rows = len(under.rows)

    def at_work():
        return {w for p in under.rows[rows:] for w in p.workers[p.batches > 0].tolist()}

    under.until(lambda: at_work() == {0, 1, 3})
    assert jax.tree.leaves(runtime.models(under.run))[0].shape == (3, *X0.shape)
    assert len(under.run.states) == N
    under.check()
    os.kill(under.pids[1], signal.SIGKILL)
    with pytest.raises(WorkersLost, match=r"(only 2 of 4 workers are left|has died 5 times)"):
        under.on(updates=100_000)
