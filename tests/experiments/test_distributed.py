"""Processes that find each other, and end when one of them does."""

import socket
import threading

import pytest

from experiments import distributed, joining
from tests.runtimes import one_of_several


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
        (("1234", 2, 0), "'1234' names no host"),
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
            joining.check_address(address, listens=True)
        joining.check_address(address, listens=False)
    with pytest.raises(ValueError, match="process 0 cannot listen there"):
        joining.check_address("no-such-host.invalid:7777", listens=True)


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
    assert joining.is_alone(environment) == alone


def test_an_environment_that_names_no_coordinator_is_refused(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="has started 2 but names no coordinator; give --coord"):
        distributed.initialize()


def test_the_last_words_are_said_once(capfd, monkeypatch):
    """Of the main thread and JAX's, which notice a death at the same time."""
    monkeypatch.setattr(distributed, "_said", threading.Lock())
    distributed._last_words("process 1 has left (refused)")
    distributed._last_words()
    (sentence,) = capfd.readouterr().err.strip().splitlines()
    assert sentence.startswith("error: process 0 of 1 ends, as process 1 has left (refused); start")
