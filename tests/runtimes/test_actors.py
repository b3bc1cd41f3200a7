"""Free workers as real processes: they run, die, hang and come back; the simulator repeats it."""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import ray

from experiments import records
from runtimes.asynchronous import pool
from runtimes.asynchronous.pool import SESSION, ActorPool, Resources
from runtimes.base import Runtime
from stragglers import delays, local_updates, processes
from stragglers.schedule import concatenate, load
from tests.launcher import ROOT
from tests.runtimes.free import N, actors, replayed, used_once
from tests.runtimes.toy import X0

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("actors")]
PATIENCE = 240.0  # s, for a machine that has other things to do


@pytest.fixture(scope="module", autouse=True)
def session():
    yield SESSION
    SESSION.close()


@pytest.fixture
def started():
    """Runtimes whose processes end with the test."""
    made = []

    def start(*arguments, **knobs):
        made.append(actors(*arguments, **knobs))
        return made[-1], made[-1].start(X0)

    yield start
    for runtime in made:
        runtime.close()


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


def same_as_replay(runtime, run, method, mini_batches, schedule):
    schedule.validate()
    simulator = replayed(method, schedule, mini_batches)
    replay, _ = simulator.advance(simulator.start(X0), np.inf)
    ours, theirs = (np.asarray(r.models(s)) for r, s in ((runtime, run), (simulator, replay)))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6 * np.abs(theirs).max())


def test_processes_that_die_and_hang_are_replaced_and_the_run_goes_on(started, monkeypatch):
    monkeypatch.setattr(pool, "SILENCE", 2.0)
    runtime, run = started("local_sgd", "k_async", 2, k=2)
    assert isinstance(runtime, Runtime) and runtime.clock == "wall" and not runtime.replays
    run, first = runtime.advance(run, np.inf, 20)
    assert run.update == 20 and np.isfinite(run.seconds)
    pieces = [first]

    def go_on(updates=10):
        nonlocal run
        run, piece = runtime.advance(run, np.inf, updates)
        pieces.append(piece)

    for number, sent in ((1, signal.SIGKILL), (2, signal.SIGSTOP)):
        pid = runtime.pids()[number]
        os.kill(pid, sent)
        deaths = run.deaths

        def replaced(before=deaths, who=number, old=pid):
            go_on()
            return run.deaths > before and runtime.pids().get(who, old) != old

        until(replaced)
    go_on(20)
    schedule = concatenate(pieces)
    for who in (1, 2):
        kinds = [event.kind for event in schedule.events if event.worker == who]
        assert kinds[:2] == ["lost", "restored"]
    used_once(schedule, 2)
    same_as_replay(runtime, run, "local_sgd", 2, schedule)
    lost = [event for event in schedule.events if event.kind == "lost"]
    assert runtime.measured(run)["deaths"] == len(lost)


def test_local_steps_by_measured_speed_go_on_though_a_worker_is_killed(started):
    """Asynchronous DiLoCo with DyLU: a first run says how many steps each makes in the second."""
    law = processes.persistent(delays.deterministic(0.01), factors={0: 8.0})
    runtime, run = started("async_diloco", "k_async", 4, law=law, k=1)
    pieces = []

    def go_on():
        nonlocal run
        run, piece = runtime.advance(run, np.inf, 10)
        pieces.append(piece)
        return piece

    until(lambda: go_on() and set(concatenate(pieces).workers.ravel()) == set(range(N)))
    steps = local_updates.dynamic(local_updates.measured_speeds(concatenate(pieces), N), 4)
    runtime.close()

    runtime, run = started("async_diloco", "k_async", steps, law=law, k=1)
    pieces.clear()
    go_on()
    os.kill(runtime.pids()[1], signal.SIGKILL)
    until(lambda: (go_on().restored == 1).any())  # its contribution, made anew
    go_on()
    schedule = concatenate(pieces)
    kinds = [event.kind for event in schedule.events if event.worker == 1]
    assert kinds[:2] == ["lost", "restored"]
    np.testing.assert_array_equal(schedule.batches, np.array(steps)[schedule.workers])
    used_once(schedule, steps)
    same_as_replay(runtime, run, "async_diloco", steps, schedule)


@pytest.mark.parametrize(
    ("method", "wait", "own"),
    [
        ("local_sgd", "k_async", {"k": 1, "grace": 0.02}),
        ("decoupled_diloco", "quorum_async", {"k": 2, "gamma": 0.7}),
    ],
)
def test_an_update_waits_on_while_processes_die_and_a_run_resumes(started, method, wait, own):
    runtime, run = started(method, wait, 2, **own)
    run, schedule = runtime.advance(run, np.inf, 30)
    pieces = [schedule]
    os.kill(runtime.pids()[1], signal.SIGKILL)

    def replaced():
        nonlocal run
        run, piece = runtime.advance(run, np.inf, 10)
        pieces.append(piece)
        return any(event.kind == "restored" for event in piece.events)

    until(replaced)
    run, piece = runtime.advance(run, run.seconds + 0.3)  # whatever the server waits for then
    packed = runtime.pack(run)
    runtime.close()
    other, fresh = started(method, wait, 2, **own)
    resumed, nothing = other.resume(fresh, packed, [])
    assert nothing is None
    for name in ("update", "samples", "seconds"):
        assert getattr(resumed, name) == getattr(run, name)
    run, last = other.advance(resumed, np.inf, 30)
    schedule = concatenate([*pieces, piece, last])
    used_once(schedule, 2)
    same_as_replay(other, run, method, 2, schedule)
    counts = (schedule.batches > 0).sum(axis=1)
    assert own["k"] <= counts.min() and own["k"] < counts.max()


def test_a_worker_that_computes_nonsense_ends_the_run_or_is_left_out(started):
    runtime, run = started("diverging", "k_async", 1, k=1)
    with pytest.raises(RuntimeError, match=r"contribution of worker . at update .* is not finite"):
        runtime.advance(run, np.inf, 200)


def test_a_process_that_is_killed_while_it_starts_is_replaced(started, monkeypatch):
    runtime, run = started("all_reduce", "k_async", 1, k=1)
    begin, killed = ActorPool.start, []

    def start(self, member, *ready):
        reference = begin(self, member, *ready)
        if member == 2 and not killed:
            killed.append(member)
            ray.kill(self.handle(member))
        return reference

    monkeypatch.setattr(ActorPool, "start", start)
    run, schedule = runtime.advance(run, np.inf, 20)
    assert killed and set(schedule.workers.ravel()) == set(range(N))


def test_a_process_that_cannot_start_is_a_sentence(started):
    runtime, run = started("all_reduce", "k_async", 1, k=1)
    runtime._recipe = functools.partial(int, "no number")
    with pytest.raises(ValueError, match=r"process of worker . cannot start .*no number"):
        runtime.advance(run, np.inf, 1)
    assert runtime._serving is None


def test_more_than_the_cluster_has_is_refused(started, session):
    session.provide(1, Resources(), 0)
    with pytest.raises(ValueError, match=r"4 workers want 2 GPUs and the cluster has 0"):
        session.provide(4, Resources(gpus=0.5), 0)


def test_a_cluster_of_our_own_makes_room_for_a_larger_run(session):
    session.close()
    session.provide(1, Resources(), 0)
    session.provide(os.cpu_count() + 2, Resources(), 0)
    assert ray.cluster_resources()["CPU"] == os.cpu_count() + 2


def test_a_launch_that_is_ended_goes_on_and_leaves_nothing(tmp_path):
    """By a signal, or with one of Ray's services."""
    workdir = tmp_path / "run"
    command = [
        sys.executable, "launch.py", "--config=configs/slow_and_stale.py:real,seconds=12",
        f"--workdir={workdir}", "--checkpoint_seconds=0", "--config.delay=exponential(scale=0.02)",
        "--config.wait=quorum_async(k=2)",
    ]  # fmt: skip

    def metrics():
        path = workdir / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    with tempfile.TemporaryDirectory() as temporary:
        for victim, sent, code in (
            (b"launch.py", signal.SIGTERM, 143),
            (b"raylet", signal.SIGKILL, 3),
            (b"gcs_server", signal.SIGKILL, 3),
            (b"launch.py", signal.SIGKILL, -9),
            (None, None, 0),
        ):
            before, theirs = metrics(), []
            launched = subprocess.Popen(
                command,
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"TMPDIR": temporary},
            )
            if sent is not None:
                until(lambda before=before: metrics() >= before + 2)
                theirs = [pid for pid in descendants(launched.pid) if serves(pid)]
                assert len(theirs) > 4  # workers and services
                (folder,) = pathlib.Path(temporary).glob("gossax*")
                assert folder.stat().st_mode & 0o777 == 0o700
                ours = (launched.pid, *theirs)
                os.kill(next(pid for pid in ours if victim in program(pid)), sent)
            _, said = launched.communicate(timeout=PATIENCE)
            # Ray itself ends a launcher, with 1, that is just handing it an array (docs/actors.md).
            codes = (code, 1) if victim == b"raylet" else (code,)
            assert launched.returncode in codes, said
            assert "Traceback" not in said and "SIGTERM received" not in said
            if launched.returncode == 3:
                assert said.endswith("the same command goes on from the last checkpoint\n"), said
            until(lambda: not list(pathlib.Path(temporary).glob("gossax*")))
            until(lambda theirs=theirs: not any(map(serves, theirs)))
    summary = records.read_json(workdir / records.SUMMARY)
    assert summary["clock"] == "wall" and summary["seconds"] >= 12
    schedule = load(workdir / records.SCHEDULE)
    assert schedule.offset == 0 and schedule.updates == summary["updates"]
    used_once(schedule, 1)


def descendants(pid):
    """The processes that a process has started, and those that they have."""
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    for child in path.read_text().split() if path.exists() else ():
        yield int(child)
        yield from descendants(int(child))


def program(pid):
    """The command of a process without what it is given, b"" where there is none."""
    with contextlib.suppress(OSError):
        return b" ".join(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2])
    return b""


def serves(pid):
    """Return whether a process is a worker of ours, or a service or an agent of Ray."""
    return any(name in program(pid) for name in (b"ray::", b"raylet", b"gcs_server"))
