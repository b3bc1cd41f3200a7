"""Two machines of one Ray cluster, as network namespaces, one of which is lost during a run."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest

from benchmarks import namespaces
from experiments import records
from stragglers.schedule import load
from tests.hosts import unable
from tests.launcher import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("actors")]
WORKERS, TOKEN = 4, "0123456789abcdef" * 4
PATIENCE = 300.0  # s, for a machine that has other things to do
VARIABLES = {
    # A machine that is silent for 4 s has gone, where Ray's own patience is 15 s and more.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}

PORT = 6379
STORE = 100 * 2**20  # bytes of a node's store
JOINING = 180.0  # s that a node may take on a machine that has other things to do
JOINED = "Ray runtime started"
# Who belongs to a cluster has these.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else the launching process alone is quick
}


@contextlib.contextmanager
def ray_cluster(hosts, cpus):
    """A Ray node of `cpus` on every host: (its address, the variables of who belongs to it)."""
    environment = {**ENVIRONMENT, "RAY_AUTH_TOKEN": TOKEN, **VARIABLES}
    address = f"{hosts[0].address}:{PORT}"
    # A short name, as the names of sockets may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="gossax-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as ending,
    ):
        for number, host in enumerate(hosts):
            where = [f"--address={address}"]
            if not number:
                where = ["--head", f"--port={PORT}", "--include-dashboard=false"]
                where.append(f"--temp-dir={folder}")
            command = [
                *host.prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
                f"--node-ip-address={host.address}", f"--num-cpus={cpus}",
                f"--object-store-memory={STORE}", *where,
            ]  # fmt: skip
            said = pathlib.Path(folder, f"{host.name}.txt")
            with said.open("w") as file:
                process = subprocess.Popen(
                    command, env=os.environ | environment, stdout=file, stderr=subprocess.STDOUT
                )
            ending.callback(_end, process)
            _await(process, said)
        yield address, environment


def _await(process, said):
    """Return when a node belongs to the cluster."""
    until = time.monotonic() + JOINING
    while JOINED not in said.read_text():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"a Ray node does not come up: {said.read_text()[-1000:]}")
        time.sleep(0.2)


def _end(process):
    process.terminate()  # it ends what it has started
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(condition, run, log):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert run.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.1)


def on_host(host):
    """The processes that live there."""
    found = subprocess.run(
        ["ip", "netns", "pids", host.name], capture_output=True, text=True, check=True
    )
    return [int(pid) for pid in found.stdout.split()]


def test_a_run_goes_on_to_its_end_when_a_machine_is_lost(tmp_path):
    """With the workers of the other one, as Ray has no room for those that were lost."""
    if unable() is not None:
        pytest.skip(unable())
    workdir, log = tmp_path / "run", tmp_path / "said.txt"

    def metrics():
        path = workdir / records.METRICS
        return path.read_text().count("\n") if path.exists() else 0

    with (
        namespaces.switch(2) as (first, second),
        ray_cluster((first, second), 2) as (address, environment),
        log.open("w") as said,
    ):
        launch = [
            sys.executable, "launch.py", f"--workdir={workdir}",
            f"--config=configs/slow_and_stale.py:real,workers={WORKERS}",
            f"--cluster={address}", "--config.wait=k_async(k=1)",
            "--config.delay=exponential(scale=0.05)", "--config.seconds=1000",
            "--config.updates=1500", "--config.evaluate_every=0.5",
        ]  # fmt: skip

        run = subprocess.Popen(
            [*first.prefix, *launch],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        until(lambda: metrics() >= 4, run, log)
        for pid in on_host(second):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert run.wait(PATIENCE) == 0, log.read_text()[-3000:]
    schedule = load(workdir / records.SCHEDULE)
    schedule.validate()
    lost = {event.worker for event in schedule.events if event.kind == "lost"}
    gone = max(event.time for event in schedule.events if event.kind == "lost")
    assert len(lost) == 2 and not any(event.kind == "restored" for event in schedule.events)
    after = schedule.time > gone
    assert set(schedule.workers[after].ravel()) == set(range(WORKERS)) - lost
    assert after.sum() > 50 and "Traceback" not in log.read_text()
    for who in range(WORKERS):
        counters = np.sort(schedule.first[schedule.workers == who])
        np.testing.assert_array_equal(counters, np.arange(counters.size))
