"""Hosts with links: what a rate, a message and a record are, and two hosts that exchange."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.base import AXIS
from benchmarks import (
    hosts,
    hosts_exchange,
    namespaces,
    points,
    seconds_to_loss,
    slow_host,
    swarm_hosts,
)
from comms import cost
from configs import links
from stragglers import delays, processes
from stragglers.rule import Setting, whole
from stragglers.rules import RULES
from stragglers.theory.rounds import speeds_gain
from tests.hosts import unable
from tests.launcher import ROOT


@pytest.fixture
def able():
    if unable() is not None:
        pytest.skip(unable())


# --- what is expected ---


def test_a_rate_is_read():
    assert namespaces.bits_per_second("100mbit") == 1e8
    assert namespaces.bits_per_second("2.5gbit") == 2.5e9
    for wrong in ("100", "mbit", "0gbit", "1 gbit", "-1mbit", "1GB"):
        with pytest.raises(ValueError, match="write a number and its unit"):
            namespaces.bits_per_second(wrong)


def test_an_all_reduce_says_what_a_message_and_a_byte_cost():
    ring = cost.ring(4, alpha=0.5, beta=2.0)
    message, links = hosts_exchange.measured(4, ring)
    assert message == pytest.approx(0.5)
    assert links.seconds(10.0, 0, 1) == pytest.approx(20.0)
    assert hosts_exchange.nominal("100mbit", 2).seconds(12.5e6, 0, 1) == pytest.approx(1, rel=1e-3)


def test_messages_are_counted_one_after_the_other():
    def program(x, tree):
        def more(x):
            return jax.lax.ppermute(x, AXIS, [(0, 1)])

        x = jax.lax.cond(x[0] > 0, lambda x: more(more(x)), more, x)  # the false one counts: 1
        x, _ = jax.lax.scan(
            lambda x, _: (jax.lax.psum(x, AXIS), None), x, None, length=5
        )  # 5 rings
        jax.lax.axis_index(AXIS)
        return jax.lax.psum(tree, AXIS), jax.lax.all_gather(x, AXIS)  # 2 rings, and half of one

    tree = {"a": jnp.ones(3), "b": jnp.ones((2, 2))}
    made = jax.make_jaxpr(program, axis_env=[(AXIS, 4)])(jnp.ones(4), tree)
    assert hosts_exchange.steps_of(made, 4) == 1 + 7 * 6 + 3


def point(**changes):
    given = {"task": "ncf", "method": "dense", "hosts": 2, "rate": "1gbit"}
    given |= {"codec": 1.0, "sent": 4.0, "steps": 10, "latency": 0.1}
    given |= {"injected_gradient": 2.0, "shared_gradient": 3.0}
    seconds = {"exchange": 5.0, "injected": 8.0, "shared": 12.0}
    return hosts_exchange.compared(given | changes, seconds)


def test_an_error_is_that_of_what_was_expected():
    found = point()
    assert [found[f"{column}_predicted"] for column in hosts.COLUMNS] == [6.0, 8.0, 9.0]
    errors = [found[f"{column}_error"] for column in hosts.COLUMNS]
    assert errors == pytest.approx([0.2, 0.0, -0.25])


def test_a_record_keeps_other_measurements(tmp_path):
    path = tmp_path / "hosts.json"
    points.put(path, "a command", hosts.KEY, [point(), point(rate="100mbit")])
    points.put(path, "a command", hosts.KEY, [point(hosts=4), point(codec=7.0)])
    record = json.loads(path.read_text())
    assert len(record["summary"]["points"]) == 3
    assert sorted(p["codec"] for p in record["summary"]["points"])[-1] == 7.0


def test_all_arms_are_there():
    names = list(hosts_exchange.arms("ncf", 2))
    assert names[0] == "dense" and {"s2/sketch", "sparcml", "bf16", "int8"} < set(names)


def test_a_slow_host_is_expected_to_gain_what_its_rounds_gain():
    delay = processes.persistent(delays.deterministic(0.1), {2: 5.0})
    setting = Setting(delay, 3, slow_host.MINI_BATCHES, 0, communication=0.3)
    barrier, free = (
        whole(RULES[name](setting, **knobs), 60)
        for name, knobs in (("barrier", {}), ("first_finisher", {"in_flight": "finish"}))
    )
    each, beside = slow_host.costs(free)
    np.testing.assert_allclose(each, [0.1, 0.1, 0.5])
    assert beside == pytest.approx(0.3)
    expected = speeds_gain(each, slow_host.MINI_BATCHES, beside, in_flight="finish")
    gain = slow_host.throughput(free) / slow_host.throughput(barrier)
    assert gain == pytest.approx(expected) and gain > 2.4


# --- hosts ---

ENDED = """
import os, signal, subprocess
from benchmarks import namespaces
with namespaces.switch(2, "100mbit", quota=0.5) as hosts:
    sleeper = subprocess.Popen([*hosts[1].prefix, "sleep", "100"])
    print(hosts[0].hub, sleeper.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_leaves_no_hosts(able):
    if namespaces.unmet(quota=True):
        pytest.skip(namespaces.unmet(quota=True))
    ended = subprocess.run([sys.executable, "-c", ENDED], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    hub, sleeper = ended.stdout.split()
    own = hub.removesuffix("hub")
    places = (namespaces.NAMES, namespaces.FILES, namespaces.GROUPS)
    until = time.monotonic() + 10
    while any(list(place.glob(f"{own}*")) for place in places):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not pathlib.Path(f"/proc/{sleeper}/cwd").exists()


def test_others_are_left_alone(able):
    with namespaces.switch(1) as (host,):
        namespaces.remove(host.name[:-3])  # a beginning of ours is not ours
        assert (namespaces.NAMES / host.name).exists()


@pytest.mark.slow
def test_two_hosts_exchange(able, tmp_path):
    path = tmp_path / "hosts.json"
    command = [sys.executable, "-m", "benchmarks.hosts", "--hosts=2", "--rate=100mbit"]
    command += ["--tasks=ncf", "--methods=dense", "--runs=3", f"--output={path}"]
    alone = os.environ | {"XLA_FLAGS": ""}  # a device per host
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, env=alone)
    (found,) = json.loads(path.read_text())["summary"]["points"]
    assert found["exchange"] > 0.9 * 1_005_128 / 12.5e6  # a link has a rate


# --- seconds to a loss ---


def summary(**changes):
    given = {"name": "a", "target_loss": 0.1, "seconds_to_target": 4.0, "updates_to_target": 30}
    return given | {"seconds": 6.0, "updates": 60, "bytes_per_worker": 1.2e8} | changes


def test_a_point_has_what_was_measured_beside_what_was_expected():
    real = {"a": summary(), "b": summary(name="b", updates_to_target=None, seconds_to_target=None)}
    free = {name: summary(seconds=4.8) for name in real}  # 0.08 s an update
    simulated = {name: summary(seconds_to_target=0.9, seconds=1.8) for name in real}
    first, second = seconds_to_loss.rows(4, "1gbit", 0.02, real, free, simulated)
    sent = 2e6 / (1e9 / 8 * cost.PAYLOAD)  # s of an update
    assert first["bytes"] == pytest.approx(2e6)
    assert first["update"] == 0.1 and first["expected_update"] == pytest.approx(0.08 + sent)
    assert first["expected"] == pytest.approx(30 * (0.08 + sent))
    assert first["error"] == pytest.approx((0.08 + sent) / 0.1 - 1)
    assert first["nominal"] == 0.9 and first["nominal_error"] == pytest.approx(-0.7)
    assert second["seconds"] is None and second["expected"] is None
    slower = first | {"rate": "100mbit", "seconds": 9.0}
    canvas = seconds_to_loss.figure([first, second, slower])
    solid, dotted = canvas.axes[0].get_lines()  # the arm that missed the loss has none
    assert solid.get_xydata().tolist() == [[100.0, 9.0], [1000.0, 4.0]]
    assert dotted.get_ydata().tolist() == [first["expected"]] * 2


@pytest.mark.slow
def test_the_modelled_sweep_has_the_arms_of_the_measured_one(tmp_path):
    tiny = ["--config.updates=2", "--config.task=synthetic_quadratic(samples=64)"]
    found = seconds_to_loss.modelled(2, "100mbit", 0.01, tmp_path, tiny)
    assert set(found) == {name for name, _ in links.sweep()}
    assert all(one["seconds"] > 0 for one in found.values())


# --- Swarm between hosts ---


def test_a_point_of_swarm_has_means_and_deviations():
    runs = [summary(), summary(seconds=12.0, seconds_to_target=6.0)]
    found = swarm_hosts.point("8 bits", 4, "1gbit", runs)
    assert found["meeting"] == pytest.approx(0.15) and found["seconds"] == pytest.approx(5.0)
    assert found["meeting_deviation"] == pytest.approx(0.1 / 2**0.5)
    assert found["bytes"] == pytest.approx(1.2e8 / 60)
    assert swarm_hosts.point("8 bits", 4, "1gbit", runs[:1])["seconds_deviation"] == 0.0
    missed = swarm_hosts.point("8 bits", 4, "1gbit", [*runs, summary(seconds_to_target=None)])
    assert missed["seconds"] is None and missed["runs"] == 3
