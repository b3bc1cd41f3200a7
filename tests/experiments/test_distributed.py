"""Processes that find each other, share texts, and end when one of them does."""

import os
import re
import runpy
import signal
import socket
import sys
import threading

import jax
import pytest

from configs import nonblocking
from experiments import distributed, endings, sweep
from tests import warm
from tests.launcher import ROOT
from tests.runtimes import one_of_several
from tests.test_architecture import FILES
from tests.two_processes import free_port

ENDINGS = (signal.SIGINT, *endings.OTHERS)


@pytest.mark.slow
def test_a_process_whose_peer_falls_silent_says_so_and_ends(tmp_path):
    with one_of_several.started(tmp_path, "1", "SIGSTOP") as (both, _):
        assert both[0].wait(300) == distributed.DEAD, (tmp_path / "0.txt").read_text()[-2000:]
    sentence = (tmp_path / "0.txt").read_text().splitlines()[-1]
    assert sentence.startswith("error: process") and "same command" in sentence


def test_without_others_nothing_happens(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node1")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    distributed.initialize()
    assert distributed.processes() == 1 and distributed.is_writer()
    assert distributed.agreed([1, None]) == [1, None]
    with pytest.raises(SystemExit, match="2"):
        distributed.leave(2)


def test_no_signal_disturbs_a_process_that_is_done_and_waits_for_the_first_one(monkeypatch):
    """The first one may be writing its report; a process that left would end it, too."""
    before = [signal.getsignal(number) for number in ENDINGS]
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    monkeypatch.setattr(distributed, "_over", threading.Event())
    monkeypatch.setattr(
        distributed, "meet", lambda *_: [signal.raise_signal(number) for number in endings.OTHERS]
    )
    try:
        endings.handle(lambda number, _: endings.end(number))
        with pytest.raises(SystemExit, match=r"^0$"):
            distributed.leave(0)
    finally:
        for number, handler in zip(ENDINGS, before, strict=True):
            signal.signal(number, handler)


def test_open_questions_are_refused(monkeypatch):
    for arguments, message in (
        (("host:1234", 2, None), "process_id=None; give all three"),
        (("host:1234", 2, 2), "process_id=2 of num_processes=2; they count from 0 to 1"),
        ((":1234", 2, 0), "':1234' names no host"),
        (("host:99999", 2, 0), "names no host or no port"),
    ):
        with pytest.raises(ValueError, match=message):
            distributed.initialize(*arguments)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="has started 2 but names no coordinator; give --coord"):
        distributed.initialize()


def test_a_port_at_which_somebody_listens_is_refused():
    """As where two processes are both given the number 0."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match="another process listens there; give a free port"):
            distributed.check_address(address, listens=True)
        distributed.check_address(address, listens=False)
    with pytest.raises(ValueError, match="process 0 cannot listen there"):
        distributed.check_address("no-such-host.invalid:7777", listens=True)


def test_the_environment_says_who_is_there():
    for environment, alone in (
        ({"OMPI_COMM_WORLD_SIZE": "1"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://h:1"}, False),
        ({"SLURM_STEP_NODELIST": "n", "SLURM_NTASKS": "2"}, False),
        ({"SLURM_STEP_NODELIST": "n", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, True),
        ({"KUBERNETES_SERVICE_HOST": "h"}, True),
        ({"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "0"}, False),
        ({}, False),
    ):
        assert distributed.is_alone(environment) == alone


def test_the_last_words_are_said_once(capfd, monkeypatch):
    """Of the main thread and JAX's, which notice a death at the same time."""
    monkeypatch.setattr(distributed, "_said", threading.Lock())
    distributed._last_words("as process 1 has left (refused)")
    distributed._last_words()
    (sentence,) = capfd.readouterr().err.strip().splitlines()
    assert sentence.startswith("error: process 0 of 1 ends, as process 1 has left (refused); start")


# --- what we take from JAX's coordination service, in whatever version of JAX this is ---

ALONE = """
import jax
from configs import nonblocking
from experiments import distributed, sweep

distributed.initialize("127.0.0.1:{port}", 1, 0)
assert (distributed.processes(), distributed.process_id()) == (1, 0)
distributed.say("a/text", "one")
for asked, reason in (
    (lambda: distributed.say("a/text", "two"), "ALREADY_EXISTS"),
    (lambda: distributed.hear("a/nothing", 0.05), "DEADLINE_EXCEEDED"),
):
    try:
        raise AssertionError(asked())
    except jax.errors.JaxRuntimeError as error:
        assert reason in str(error)
distributed.say("a/text", "three", again=True)
assert distributed.hear("a/text", 1.0) == "three" and distributed.gathered([1]) == [[1]]
assert distributed.texts("a") == {{"a/text": "three"}}

tally = distributed.SharedTally()
for start in range(2):
    tally.begin(3)
    for first in range(0, {rounds} // 2, 8):
        rounds = range(first, first + 8)
        assert not any(map(tally.over, rounds))
        assert tally.add(first, 2) and not tally.over(first)
        assert tally.add(first, 1) and tally.over(first) and not tally.add(first, 1)
        tally.close(rounds)
        assert len(tally._threads) == len(tally._over) == 0
assert distributed.texts(distributed.ROUNDS) == {{}}
print("all is there")
"""


@pytest.mark.slow
def test_the_service_does_what_we_rely_on_and_keeps_no_key_of_old_rounds(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(ALONE.format(port=free_port(), rounds=320))
    done = warm.run([script], cwd=ROOT, env=os.environ, timeout=300)
    assert done.stdout == "all is there\n", done.stderr[-2000:]


def test_private_names_of_jax_stand_in_one_module_and_are_where_they_were(monkeypatch):
    """A JAX without them fails here, and not in the middle of a run."""
    from jax._src.lib import _jax

    private = re.compile(r"^\s*(from|import) (jax\._|jaxlib|jax import _)", re.MULTILINE)
    inside = [path for path in FILES if private.search(path.read_text(encoding="utf-8"))]
    assert inside == [ROOT / "experiments" / "distributed.py"]

    with open(distributed.__file__, encoding="utf-8") as file:
        used = set(re.findall(r"client\.(\w+)\(", file.read()))
    assert len(used) == 6, used
    missing = [name for name in used if not hasattr(_jax.DistributedRuntimeClient, name)]
    assert not missing, f"JAX {jax.__version__} has no {missing}; mend experiments/distributed.py"
    monkeypatch.setitem(sys.modules, "jax._src.distributed", None)
    with pytest.raises(ImportError, match=r"^distributed: JAX [\d.]+ has moved jax\._src\.dist"):
        runpy.run_path(distributed.__file__)


def test_devices_are_connected_before_anything_compiles(monkeypatch):
    """JAX gives a process 30 s to come to the first collective, and one may compile for longer."""
    config, connected = nonblocking.get_config(), []
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    distributed.connect()
    monkeypatch.setattr(distributed, "connect", lambda: connected.append(jax.device_count()))
    sweep.provide_cpu_devices([sweep.Arm("", config)])
    assert connected == [8]
