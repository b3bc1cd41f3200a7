"""The sides of the comparison with others train on the same, and take turns."""

import io
import pathlib

import jax
import numpy as np
import pytest

from benchmarks import peers, peers_data


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "hidden"])
def test_one_scan_and_a_call_per_event_end_at_the_same_model(monkeypatch, model):
    monkeypatch.setitem(peers.AMOUNT, model, 24)
    called, scanned = peers.call(model)(), peers.scan(model)()
    start = peers._task(model).init(jax.random.key(0))
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), called, start)
    assert max(jax.tree.leaves(moved)) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), called, scanned)


def test_a_side_takes_a_turn_for_every_line(monkeypatch, capsys):
    turns = []
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    peers_data.take_turns(lambda: turns.append(None))
    ready, *seconds = capsys.readouterr().out.split()
    assert ready == "ready" and len(seconds) == 2 and len(turns) == 3
    assert all(float(taken) >= 0 for taken in seconds)


def test_every_side_of_a_task_has_something_to_start():
    taking = {name for names in peers.TAKES.values() for name in names}
    assert taking == set(peers.SIDES) and peers.TAKES.keys() == peers.AMOUNT.keys()
    for name in taking - set(peers.OWN):
        assert (pathlib.Path(peers.__file__).parents[1] / peers.OTHERS[name][1]).is_file()
