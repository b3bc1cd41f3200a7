"""Hosts with links: a rate, what leaves with them, and two hosts that train."""

import pathlib
import signal
import subprocess
import sys

import pytest

from benchmarks import links, namespaces
from comms import cost
from tests.hosts import unable
from tests.launcher import ROOT
from tests.waiting import until


@pytest.fixture
def able():
    if unable() is not None:
        pytest.skip(unable())


# --- hosts ---

ENDED = """
import os, signal, subprocess
from benchmarks import namespaces
with namespaces.switch(2, "100mbit") as hosts:
    sleeper = subprocess.Popen([*hosts[1].prefix, "sleep", "100"])
    print(hosts[0].hub, sleeper.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_leaves_no_hosts(able):
    ended = subprocess.run([sys.executable, "-c", ENDED], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    hub, sleeper = ended.stdout.split()
    own = hub.removesuffix("hub")
    places = (namespaces.NAMES, namespaces.FILES)
    until(lambda: not any(list(place.glob(f"{own}*")) for place in places))
    assert not pathlib.Path(f"/proc/{sleeper}/cwd").exists()


# --- seconds to a loss ---


def summary(**changes):
    given = {"name": "a", "target_loss": 0.1, "seconds_to_target": 4.0, "updates_to_target": 30}
    return given | {"seconds": 6.0, "updates": 60, "bytes_per_worker": 1.2e8} | changes


def test_a_point_has_what_was_measured_beside_what_was_expected():
    real = {"a": summary(), "b": summary(name="b", updates_to_target=None, seconds_to_target=None)}
    free = {name: summary(seconds=4.8) for name in real}  # 0.08 s an update
    first, second = links.rows(4, "1gbit", real, free)
    sent = 2e6 / (1e9 / 8 * cost.PAYLOAD)  # s of an update
    assert first["bytes"] == pytest.approx(2e6)
    assert first["update"] == 0.1 and first["expected_update"] == pytest.approx(0.08 + sent)
    assert first["expected"] == pytest.approx(30 * (0.08 + sent))
    assert first["error"] == pytest.approx((0.08 + sent) / 0.1 - 1)
    assert second["seconds"] is None and second["expected"] is None


@pytest.mark.slow
def test_two_hosts_train_an_arm_on_links_with_a_rate(able, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # a device per host
    flags = ["--arm=all_reduce", "--config.updates=3", "--config.seconds=1e6"]
    found = links.swept(2, "100mbit", links.CONFIG, flags, f"{tmp_path}/out")["all_reduce"]
    assert found["updates"] == 3
    assert found["seconds"] > 0.5 * found["bytes_per_worker"] / 12.5e6  # a link has a rate
