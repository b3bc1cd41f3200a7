"""Asynchronous workers as real processes: they run, die, hang and come back; a replay is equal."""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import ray

from benchmarks import namespaces
from benchmarks.harness import descendants
from experiments import records
from runtimes.asynchronous import pool
from runtimes.asynchronous.pool import SESSION, ActorPool, Resources
from runtimes.base import Runtime
from stragglers import delays
from stragglers.schedule import concatenate, load
from tests.hosts import unable
from tests.launcher import ROOT
from tests.runtimes.free import actors, replayed, used_once
from tests.runtimes.toy import X0
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow
# Quick to load in every process, with a loss that is not reached.
TINY = "--config.task=synthetic_logistic(samples=256, dimension=4)", "--config.target_loss=0.01"
STEPS = (1, 2, 2)  # local steps of each worker, as for one that is slower


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


def test_processes_that_die_and_hang_are_replaced_and_a_run_resumes(started, monkeypatch):
    """Asynchronous DiLoCo whose updates wait on; one process is killed while it starts."""
    monkeypatch.setattr(pool, "SILENCE", 3.0)
    begin, killed = ActorPool.start, []

    def start(self, member, *ready):
        reference = begin(self, member, *ready)
        if member == 0 and not killed:
            killed.append(member)
            ray.kill(self.handle(member))
        return reference

    monkeypatch.setattr(ActorPool, "start", start)
    law = delays.exponential(0.06)  # so that workers leave the processors to those that start
    rule, knobs = ("async_diloco", "k_async", STEPS, law), {"workers": 3, "k": 1, "grace": 0.02}
    runtime, run = started(*rule, **knobs)
    assert isinstance(runtime, Runtime) and runtime.clock == "wall" and not runtime.replays
    run, first = runtime.advance(run, np.inf, 20)
    assert killed and run.update == 20 and np.isfinite(run.seconds)
    pieces, pids = [first], runtime.pids()

    def go_on(**further):
        nonlocal run
        run, piece = runtime.advance(run, further.get("seconds", np.inf), 10)
        pieces.append(piece)

    def replaced():
        go_on()
        return {1, 2} <= set(concatenate(pieces).restored.ravel())

    os.kill(pids[1], signal.SIGKILL)
    os.kill(pids[2], signal.SIGSTOP)
    until(replaced)
    lost = [event for event in concatenate(pieces).events if event.kind == "lost"]
    assert runtime.measured(run)["deaths"] == len(lost)
    go_on(seconds=run.seconds + 0.3)  # whatever the server waits for then
    packed, stood = runtime.pack(run), run
    runtime.close()

    runtime, fresh = started(*rule, **knobs)
    run, nothing = runtime.resume(fresh, packed, [])
    assert nothing is None
    for name in ("update", "samples", "seconds"):
        assert getattr(run, name) == getattr(stood, name)
    go_on()
    schedule = concatenate([piece for piece in pieces if piece is not None])
    schedule.validate()
    for who in (1, 2):
        kinds = [event.kind for event in schedule.events if event.worker == who]
        assert kinds[:2] == ["lost", "restored"]
    real = schedule.batches > 0
    np.testing.assert_array_equal(schedule.batches[real], np.array(STEPS)[schedule.workers[real]])
    assert real.sum(axis=1).max() > 1
    used_once(schedule, STEPS, workers=3)
    simulator = replayed("async_diloco", schedule, STEPS)
    replay, _ = simulator.advance(simulator.start(X0), np.inf)
    ours, theirs = (np.asarray(r.models(s)) for r, s in ((runtime, run), (simulator, replay)))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6 * np.abs(theirs).max())


def test_what_cannot_start_is_a_sentence(started, session):
    runtime, run = started("all_reduce", "k_async", 1, workers=1, k=1)
    runtime._recipe = functools.partial(int, "no number")
    with pytest.raises(ValueError, match=r"process of worker . cannot start .*no number"):
        runtime.advance(run, np.inf, 1)
    assert not runtime.pids()
    with pytest.raises(ValueError, match="4 workers want 2 GPUs and the cluster has 0"):
        session.provide(4, Resources(gpus=0.5), 0)
    # A cluster of our own makes room for a larger run.
    more = int(ray.cluster_resources()["CPU"]) + 2
    session.provide(more, Resources(), 0)
    assert ray.cluster_resources()["CPU"] == more


def test_a_launch_that_is_ended_goes_on_and_leaves_nothing(tmp_path):
    """By a signal, or with Ray's raylet."""
    workdir = tmp_path / "run"
    command = [
        sys.executable, "launch.py", "--config=configs/slow_and_stale.py:real,seconds=7,workers=2",
        f"--workdir={workdir}", "--checkpoint_seconds=0", "--config.delay=exponential(scale=0.1)",
        "--config.wait=quorum_async(k=1)", *TINY,
    ]  # fmt: skip

    def metrics():
        path = workdir / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    with tempfile.TemporaryDirectory() as temporary:
        for victim, sent, code in (
            (b"launch.py", signal.SIGTERM, 143),
            (b"raylet", signal.SIGKILL, 3),
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
                until(lambda before=before, launched=launched: (
                    metrics() >= before + 2 or launched.poll() is not None
                ))  # fmt: skip
                theirs = [pid for pid in descendants(launched.pid) if serves(pid)]
                assert len(theirs) >= 4  # workers and services
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
    assert summary["clock"] == "wall" and summary["seconds"] >= 7
    schedule = load(workdir / records.SCHEDULE)
    assert schedule.offset == 0 and schedule.updates == summary["updates"]
    used_once(schedule, 1, workers=2)


def program(pid):
    """Return the command of a process without what it is given, b"" where there is none."""
    with contextlib.suppress(OSError):
        return b" ".join(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2])
    return b""


def serves(pid):
    """Return whether a process is a worker of ours, or a service or an agent of Ray."""
    return any(name in program(pid) for name in (b"ray::", b"raylet", b"gcs_server"))


# --- two machines of one Ray cluster, as network namespaces, one of which is lost

CLUSTER = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else the launching process alone is quick
    # A machine that is silent for 4 s has gone, where Ray's own patience is 15 s and more.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}


@contextlib.contextmanager
def ray_cluster(hosts, folder):
    """Start a Ray node of one CPU on every host; yields its address."""
    address = f"{hosts[0].address}:6379"
    with contextlib.ExitStack() as ending:
        for number, host in enumerate(hosts):
            where = [f"--address={address}"]
            if not number:
                where = ["--head", "--port=6379", "--include-dashboard=false"]
                where.append(f"--temp-dir={folder}")
            command = [
                *host.prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
                f"--node-ip-address={host.address}", "--num-cpus=1",
                f"--object-store-memory={100 * 2**20}", *where,
            ]  # fmt: skip
            said = pathlib.Path(folder, f"{host.name}.txt")
            with said.open("w") as file:
                node = subprocess.Popen(
                    command, env=os.environ | CLUSTER, stdout=file, stderr=subprocess.STDOUT
                )
            ending.callback(node.wait)
            ending.callback(node.terminate)  # it ends what it has started
            until(lambda node=node, said=said: (
                node.poll() is not None or "Ray runtime started" in said.read_text()
            ))  # fmt: skip
            assert node.poll() is None, said.read_text()[-1000:]
        yield address


def test_a_run_goes_on_to_its_end_when_a_machine_is_lost(tmp_path):
    """With the worker of the other one, as Ray has no room for the one that was lost."""
    if unable() is not None:
        pytest.skip(unable())
    workdir, log = tmp_path / "run", tmp_path / "said.txt"

    def metrics():
        path = workdir / records.METRICS
        return path.read_text().count("\n") if path.exists() else 0

    with (
        # A short name, as the names of sockets may have 107 characters.
        tempfile.TemporaryDirectory(prefix="gossax-", ignore_cleanup_errors=True) as folder,
        namespaces.switch(2) as (first, second),
        ray_cluster((first, second), folder) as address,
        log.open("w") as said,
    ):
        launch = [
            *first.prefix, sys.executable, "launch.py", f"--workdir={workdir}",
            "--config=configs/slow_and_stale.py:real,workers=2", f"--cluster={address}",
            "--config.wait=k_async(k=1)", "--config.delay=exponential(scale=0.05)",
            "--config.seconds=1000", "--config.updates=400", "--config.evaluate_every=0.5", *TINY,
        ]  # fmt: skip
        run = subprocess.Popen(
            launch, cwd=ROOT, env=os.environ | CLUSTER, stdout=said, stderr=subprocess.STDOUT
        )
        until(lambda: metrics() >= 3 or run.poll() is not None)
        there = subprocess.run(
            ["ip", "netns", "pids", second.name], capture_output=True, text=True, check=True
        )
        for pid in there.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        assert run.wait(PATIENCE) == 0, log.read_text()[-3000:]
    schedule = load(workdir / records.SCHEDULE)
    schedule.validate()
    ((lost, gone),) = {(e.worker, e.time) for e in schedule.events if e.kind == "lost"}
    assert not any(event.kind == "restored" for event in schedule.events)
    after = schedule.time > gone
    assert set(schedule.workers[after].ravel()) == {0, 1} - {lost}
    assert after.sum() > 50 and "Traceback" not in log.read_text()
    for who in range(2):
        counters = np.sort(schedule.first[schedule.workers == who])
        np.testing.assert_array_equal(counters, np.arange(counters.size))
