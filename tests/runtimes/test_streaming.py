"""A streamed run is the run in memory, bit for bit, and reads what it needs ahead of its use."""

import os
import pathlib
import signal
import threading
import time

import jax
import numpy as np
import optax
import pytest

from algorithms import all_reduce, dpsgd, swarm, top_k
from comms import topology
from runtimes import data_feed
from runtimes.data_feed import Feed, Readers, Streamed, Unreadable
from runtimes.mesh import Mesh
from runtimes.simulate import Simulator
from stragglers import delays, inject, processes
from tests import planned, warm
from tests.launcher import ROOT
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, B, Counted, bits, losses, replayed
from tests.waiting import until

N, M = 4, 2
LAW = delays.exponential(0.3)


def optimizer():
    return optax.sgd(0.05, momentum=0.9)


# A method and a waiting rule for bodies and shapes of rows.
ARMS = {
    "union": (lambda: all_reduce(optimizer()), "first_finisher", {}),
    "replicated": (lambda: top_k(optimizer(), ratio=0.5), "barrier", {}),
    "stale": (lambda: all_reduce(optimizer()), "k_async", {"k": 2}),
    "pairs": (
        lambda: swarm(optimizer(), topology.complete(N)),
        "random_pairs",
        {"graph": topology.complete(N)},
    ),
}


def simulator(arm, examples):
    method, wait, knobs = ARMS[arm]
    rule = planned.rule(wait, LAW, N, M, 3, **knobs)
    return Simulator(method(), losses, examples, SAMPLES, rule, mini_batches=M)


def mesh(examples, **options):
    method = dpsgd(optimizer(), topology.ring(N))
    return Mesh(
        method, losses, examples, SAMPLES, workers=N, mini_batches=M, rounds_per_dispatch=4,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("arm", [slow("union"), "stale", slow("pairs")])
def test_streamed_is_in_memory_bit_for_bit(arm, monkeypatch):
    """Also after a resume in the middle, and with tables of a few updates each."""
    sample_bytes = Streamed(Counted()).sample_bytes
    assert sample_bytes == 7 * 4
    monkeypatch.setattr(data_feed, "TABLE_BYTES", 5 * sample_bytes * N * M * B)
    ours, theirs = simulator(arm, Streamed(Counted())), simulator(arm, DATA)
    straight, _ = theirs.advance(theirs.start(X0), np.inf, 23)
    streamed, _ = ours.advance(ours.start(X0), np.inf, 11)
    packed, seconds = ours.pack(streamed), streamed.seconds
    streamed, _ = ours.advance(streamed, np.inf, 12)
    assert bits(ours.models(streamed)) == bits(theirs.models(straight))
    assert bits(ours.memory(streamed)) == bits(theirs.memory(straight))
    resumed = simulator(arm, Streamed(Counted()))
    again, _ = resumed.resume(resumed.start(X0), packed, [(0.0, 1.0), (seconds, 1.0)])
    again, _ = resumed.advance(again, np.inf, 12)
    assert bits(resumed.pack(again)) == bits(theirs.pack(straight))
    for runtime in (ours, resumed):
        runtime.close()


def test_a_streamed_mesh_is_the_mesh_in_memory(monkeypatch):
    """With dispatches of as many rounds as a table holds, and after a resume."""
    most = 2 * Streamed(Counted()).sample_bytes * M * B
    monkeypatch.setattr(data_feed, "TABLE_BYTES", most)
    ours, theirs, source = mesh(Streamed(Counted())), mesh(DATA), Counted()
    straight, _ = theirs.advance(theirs.start(X0), np.inf, 14)
    begun, first = ours.advance(ours.start(X0), np.inf, 7)
    packed = ours.pack(begun)
    resumed = mesh(Streamed(source))
    again, _ = resumed.resume(resumed.start(X0), packed, ())
    for runtime, run in ((ours, begun), (resumed, again)):
        run, schedule = runtime.advance(run, np.inf, 7)
        assert bits(runtime.models(run)) == bits(theirs.models(straight))
        schedule.validate()
        assert first.time[-1] > first.busy.sum(0)[0]  # the first table was waited for
        assert runtime.measured(run)["input_wait_seconds"] > 0
        runtime.close()
    read = np.concatenate(source.reads)
    assert set(SAMPLES.on_host(2, np.arange(7 * M, 14 * M)).ravel()) <= set(read)


def test_a_watched_round_streams_what_its_workers_take():
    """A worker cut short takes up its work again; the clock counts the wait for the input."""
    rule = planned.rule("first_finisher", delays.deterministic(0.005), N, M)
    uneven = processes.persistent(delays.deterministic(0.005), {0: 6.0})
    watched = inject.Injector(N, rule.trigger, 0, delay=uneven)
    runtime = mesh(Streamed(Counted()), injector=watched)
    run, schedule = runtime.advance(runtime.start(X0), np.inf, 12)
    assert (schedule.batches.max(1) == M).all() and (schedule.batches < M).any()
    replay = replayed(dpsgd(optimizer(), topology.ring(N)), schedule, M)
    np.testing.assert_allclose(replay, runtime.models(run), rtol=2e-4, atol=2e-5)
    runtime.close()


def test_a_run_reads_each_mini_batch_once_and_ahead():
    source = Counted()
    runtime = simulator("replicated", Streamed(source, Readers(threads=1)))
    run, _ = runtime.advance(runtime.start(X0), np.inf, 8)
    run, _ = runtime.advance(run, np.inf, 8)
    jax.block_until_ready(run.model)
    used = [SAMPLES.on_host(w, np.arange(16 * M)) for w in range(N)]
    until(lambda: len(source.reads) >= N * 24 * M)
    read = sorted(tuple(indices) for indices in source.reads[: N * 16 * M])
    assert read == sorted(tuple(row) for rows in used for row in rows)
    assert len(source.reads) == N * 24 * M  # and what the next eight updates take, once
    assert runtime.measured(run)["input_wait_seconds"] > 0
    runtime.close()


def test_the_next_table_is_read_while_devices_compute():
    """Nothing is waited for where the readers were faster than the devices."""
    feed = Feed(Streamed(Counted()), SAMPLES)
    addresses = np.stack([np.repeat(np.arange(N), M), np.tile(np.arange(M), N)], axis=1)
    feed.table(addresses, N * M, computing=lambda: True)
    assert feed.waited == 0
    after = data_feed.following(addresses, np.full(N, M))
    np.testing.assert_array_equal(after, addresses + np.array([0, M]))
    table = feed.table(after, 2 * N * M)
    expected = DATA["y"][SAMPLES.indices(0, [2, 3])]
    np.testing.assert_array_equal(table["y"][: 2 * B], expected.ravel())
    assert not table["y"][N * M * B :].any()
    feed.close()


class Slow(Counted):
    """Examples that are read long after the devices have ended their work."""

    def read(self, indices):
        time.sleep(0.1)
        return super().read(indices)


def test_a_wait_counts_from_the_end_of_the_devices_work():
    """The work ends while a mini-batch is read."""
    feed, began = Feed(Streamed(Slow()), SAMPLES), time.monotonic()
    feed.table(np.array([[0, 0]]), 1, computing=lambda: time.monotonic() < began + 0.03)
    assert 0.05 < feed.waited < time.monotonic() - began - 0.03
    feed.close()


def test_the_schedule_of_a_mesh_has_all_waits_for_its_input():
    """Also the waits for the next dispatch's examples, for which a dispatch lasts longer."""
    runtime = mesh(Streamed(Slow(), Readers(threads=8)))
    run, schedule = runtime.advance(runtime.start(X0), np.inf, 12)
    waited = runtime.measured(run)["input_wait_seconds"]
    assert waited > 0.3
    assert schedule.time[-1] - schedule.busy.sum(0)[0] == pytest.approx(waited)
    runtime.close()


def test_a_reader_that_has_ended_is_one_sentence():
    feed = Feed(Streamed(Counted(), Readers(processes=1)), SAMPLES)
    feed.table(np.array([[1, 0]]), 1)
    for process in feed._pool._processes.values():
        process.kill()
    with pytest.raises(Unreadable, match="a process that reads examples has ended"):
        feed.table(np.array([[1, 9]]), 1)
    feed.close()


ORPHAN = """
import os, signal
import numpy as np
from runtimes.data_feed import Feed, Readers, Streamed
from tests.runtimes.toy import SAMPLES, Counted

if __name__ == "__main__":
    feed = Feed(Streamed(Counted(), Readers(processes=1)), SAMPLES)
    feed.table(np.array([[0, 0]]), 1)
    print(*feed._pool._processes, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_readers_end_with_a_process_that_is_killed(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = warm.run([tmp_path / "orphan.py"], cwd=tmp_path, env=environment, timeout=120)
    reader = pathlib.Path("/proc", killed.stdout.strip())
    assert killed.returncode == -signal.SIGKILL and reader.name.isdigit()
    until(lambda: not reader.exists() or "Z (zombie)" in (reader / "status").read_text())


def test_what_cannot_be_read_is_one_sentence():
    class Broken(Counted):
        def read(self, indices):
            raise OSError("shard 3 ends\nafter 17 bytes")

    runtime = simulator("union", Streamed(Broken()))
    with pytest.raises(Unreadable, match=r"mini-batch 0 of worker 0 cannot be read \(shard 3 ends"):
        runtime.advance(runtime.start(X0), np.inf, 1)
    until(lambda: not any(t.name.startswith("reader") for t in threading.enumerate()))
