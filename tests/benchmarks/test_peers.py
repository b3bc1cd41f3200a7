"""The sides of the comparison with others train on the same, and take turns."""

import io

import jax
import numpy as np
import pytest

from benchmarks import peers


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "hidden"])
def test_one_scan_and_a_call_per_event_end_at_the_same_model(model):
    called, scanned = peers.call(model, 24)(), peers.scan(model, 24)()
    start = peers._task(model).init(jax.random.key(0))
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), called, start)
    assert max(jax.tree.leaves(moved)) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), called, scanned)


def test_a_side_takes_a_turn_for_every_line(monkeypatch, capsys):
    turns = []
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    peers.take_turns(lambda: turns.append(None))
    ready, *seconds = capsys.readouterr().out.split()
    assert ready == "ready" and len(seconds) == 2 and len(turns) == 3
    assert all(float(taken) >= 0 for taken in seconds)


def test_every_side_of_a_task_has_something_to_start():
    taking = {name for names in peers.TAKES.values() for name in names}
    assert taking | {"gossax"} == set(peers.SIDES) and peers.TAKES.keys() == peers.AMOUNT.keys()


@pytest.mark.slow
def test_two_sides_take_turns(tmp_path):
    found = peers.compare("softmax", ["gossax", "scan"], 2, tmp_path)
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
