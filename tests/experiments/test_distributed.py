"""Processes that find each other, share texts, and end when one of them does."""

import re
import runpy
import socket
import subprocess
import sys
import threading

import jax
import pytest

from experiments import distributed
from tests.launcher import ROOT
from tests.runtimes import one_of_several
from tests.test_architecture import FOLDERS
from tests.two_processes import free_port


@pytest.mark.slow
def test_who_loses_a_peer_says_so_and_ends(tmp_path):
    """One is killed, and with it the coordination service; the other one only falls silent."""
    killed, stopped = tmp_path / "killed", tmp_path / "stopped"
    killed.mkdir()
    stopped.mkdir()
    with (
        one_of_several.started(killed, "0", "SIGKILL") as (one, _),
        one_of_several.started(stopped, "1", "SIGSTOP") as (other, _),
    ):
        for survivor, where in ((one[1], killed / "1.txt"), (other[0], stopped / "0.txt")):
            assert survivor.wait(100) == distributed.DEAD, where.read_text()[-2000:]
            sentence = where.read_text().splitlines()[-1]
            assert sentence.startswith("error: process") and "same command" in sentence


def test_without_others_nothing_happens(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node1")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    distributed.initialize()
    assert distributed.processes() == 1 and distributed.is_writer()
    assert distributed.agreed([1, None]) == [1, None]
    with pytest.raises(SystemExit, match="2"):
        distributed.leave(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("host:1234", 2, None), "process_id=None; give all three"),
        (("host:1234", 2, 2), "process_id=2 of num_processes=2; they count from 0 to 1"),
        (("host", 2, 0), "'host' names no host or no port; give host:port"),
        ((":1234", 2, 0), "':1234' names no host"),
    ],
)
def test_what_leaves_something_open_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        distributed.initialize(*arguments)


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


@pytest.mark.parametrize(
    ("environment", "alone"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "1"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://h:1"}, False),
        ({"SLURM_STEP_NODELIST": "n", "SLURM_NTASKS": "2"}, False),
        ({"KUBERNETES_SERVICE_HOST": "h"}, True),
        ({"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "0"}, False),
        ({}, False),
    ],
)
def test_who_is_there_is_what_the_environment_says(environment, alone):
    assert distributed.is_alone(environment) == alone


def test_an_environment_that_names_no_coordinator_is_refused(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="has started 2 but names no coordinator; give --coord"):
        distributed.initialize()


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
from experiments import distributed

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
@pytest.mark.parametrize("rounds", [320, 10_000])
def test_the_service_does_what_we_rely_on_and_keeps_no_key_of_old_rounds(rounds):
    """Of two starts with half of the rounds each."""
    script = ALONE.format(port=free_port(), rounds=rounds)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "all is there\n", done.stderr[-2000:]


def test_what_is_private_in_jax_stands_in_one_module():
    private = re.compile(r"^\s*(from|import) (jax\._|jaxlib|jax import _)", re.MULTILINE)
    paths = [path for name in (*FOLDERS, "tests") for path in (ROOT / name).rglob("*.py")]
    inside = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "launch.py", *paths)
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert inside == {"experiments/distributed.py", "tests/experiments/test_distributed.py"}


def test_what_is_private_in_jax_is_where_it_was(monkeypatch):
    """A JAX without it fails here, and not in the middle of a run."""
    from jax._src.lib import _jax

    with open(distributed.__file__, encoding="utf-8") as file:
        used = set(re.findall(r"client\.(\w+)\(", file.read()))
    assert len(used) == 7, used
    missing = [name for name in used if not hasattr(_jax.DistributedRuntimeClient, name)]
    assert not missing, f"JAX {jax.__version__} has no {missing}; mend experiments/distributed.py"
    monkeypatch.setitem(sys.modules, "jax._src.distributed", None)
    with pytest.raises(ImportError, match=r"^distributed: JAX [\d.]+ has moved jax\._src\.dist"):
        runpy.run_path(distributed.__file__)
