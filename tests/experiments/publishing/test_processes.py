"""The picture of real protocols shows what the record says, a mark for every seed."""

from experiments.publishing import processes

ARMS = {
    "columns": ["name", "seconds", "updates", "updates_by_seed", "seeds"],
    "rows": [
        ["simulated/exponential/k_sync/K=2", 30.0, 300, [300, 300], [0, 1]],
        ["real/exponential/k_sync/K=2", 30.0, 225, [300, 150], [0, 1]],
        ["simulated/pareto/k_async/K=1", 30.0, 600, [600, 600], [0, 1]],
        ["real/pareto/k_async/K=1", 30.0, 600, [600, 600], [0, 1]],
    ],
}
TABLE = {
    "title": processes.TABLE,
    "columns": ["law/protocol/K", "real [s]", "simulated [s]", "theory [s]"],
    "rows": [
        ["exponential/k_sync/K=2", "0.13", "0.1", "0.09"],
        ["pareto/k_async/K=1", "0.05", "0.05", "0.04 to 0.07"],
    ],
}
RECORD = {"command": "python launch.py", "arms": ARMS, "numbers": [TABLE]}


def test_a_place_has_its_theory_and_a_number_for_every_seed():
    sync, free = processes.places(RECORD)
    assert (sync.law, sync.protocol, sync.k) == ("exponential", "k_sync", 2)
    assert sync.theory == (0.09, 0.09) and free.theory == (0.04, 0.07)
    assert sync.by_seed == {"simulated": [0.1, 0.1], "real": [0.1, 0.2]}


def test_a_panel_for_every_law_and_the_furthest_from_its_simulation_by_name():
    canvas = processes.draw(RECORD)
    assert [axes.get_title() for axes in canvas.axes] == ["exponential", "pareto"]
    marks = [line.get_ydata() for line in canvas.axes[0].lines if line.get_marker() == "x"]
    assert [list(ys) for ys in marks] == [[0.1, 0.2]]
    assert "k_sync, K = 2, exponential, 1.50x" in canvas.get_supxlabel()


def test_all_places_of_the_published_record_are_drawn():
    found = processes.places(processes.read())
    assert len(found) == 18 and {len(place.by_seed["real"]) for place in found} == {3}
