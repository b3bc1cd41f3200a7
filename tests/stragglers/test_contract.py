"""The battery that every waiting rule must pass; a new one adds a row to `contract_rows.ROWS`."""

import itertools

import networkx as nx
import numpy as np
import pytest

from algorithms import all_reduce, dpsgd
from algorithms.base import scale_by_samples
from runtimes import mesh
from stragglers import delays, rules
from stragglers.inject import Injector
from stragglers.processes import from_law, persistent
from stragglers.rule import RoundView, Setting, whole
from stragglers.rules import RULES
from tests import planned
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, losses
from tests.stragglers.contract_rows import (
    ALL,
    COSTS,
    ROWS,
    SHIFTED,
    WITH_TRIGGER,
    P,
    arrays,
    assert_equal,
    in_segments,
    made,
    row_marks,
)  # fmt: skip

WHOLE = [name for name in ROWS if "/" not in name]  # without their variants


def test_every_rule_has_a_row():
    assert {name.split("/")[0] for name in ROWS} | {"replay"} == set(RULES)  # replay needs a file


@ALL
@pytest.mark.parametrize(("delay", "slow_links"), [("ties", False), ("time", True)])
def test_segments_equal_the_whole(name, delay, slow_links):
    """Nor does a segment change the state that it begins from."""

    def rule():
        return made(name, delay, slow_links, communication=lambda t: COSTS * (1 + t % 2))

    once = whole(rule(), 40)
    once.validate()
    assert_equal(in_segments(rule, (1, 16, 0, 23)), once)
    again = rule()
    state, _ = again.extend(again.init(), 10)
    before = arrays(state)
    assert_equal(again.extend(state, 20)[1], again.extend(state, 20)[1])
    np.testing.assert_equal(arrays(state), before)


@ALL
@pytest.mark.parametrize("delay", ["ties", "time"])
def test_who_is_in_an_update_is_as_declared(name, delay):
    rule, rows = made(name, delay), whole(made(name, delay), 60)
    said = rule.turnout
    assert rows.fewest >= (rule.workers if said.fewest is None else said.fewest)
    assert said.twice or not rows.twice.any()
    assert said.pairs == (rows.partner is not None)
    assert rows.stopped or not said.stopped
    # Here without communication; with it, who waits for less begins before the update lands.
    assert not said.cancels or (rows.start[1:] >= rows.time[:-1, None]).all()
    needed = np.zeros(rule.workers, np.int64)  # version after a worker's last contribution
    for t, (workers, version, made_any) in enumerate(
        zip(rows.workers, rows.version, rows.batches > 0, strict=True)
    ):
        assert said.early or said.pairs or (version[made_any] >= needed[workers[made_any]]).all()
        needed[workers[made_any]] = t + 1


@row_marks(WHOLE)
def test_a_law_and_the_same_law_as_a_process_agree(name):
    assert_equal(whole(made(name), 30), whole(made(name, from_law(SHIFTED)), 30))


def test_a_bad_setting_is_refused():
    for name, (options, words) in itertools.product(WHOLE, (
        ({"mini_batches": 0}, "mini_batches >= 1, got mini_batches=0"),
        ({"mini_batches": [1, 2]}, f"mini_batches lists 2 numbers for {P} workers"),
        ({"communication": -1.0}, "needs communication >= 0, got -1"),
        ({"communication": np.inf}, "needs communication >= 0, got inf"),
        ({"communication": np.ones(4)}, f"communication gave 4 numbers for {P} workers"),
        ({"draw": "epoch"}, "unknown draw='epoch'; choose one of mini_batch, round"),
    )):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            made(name, **options)


# Seconds of a mini-batch of three workers, of whose first three ends no two are within 100 ms.
APART = (0.1, 0.4, 0.5)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "own", "each"),
    [
        ("first_finisher", {"in_flight": "cut"}, 3),
        slow("neighbour_barrier", {}, 2),
        slow("quorum_grace", {"k": 1, "gamma": 0.5, "in_flight": "cut"}, 3),
        slow("adaptive_deadline", {"c": 0.5, "in_flight": "cut"}, 3),
        slow("equal_work", {"cost": 1.5}, 3),
        slow("quorum", {"k": 3}, 3),
        slow("deadline", {"seconds": 0.6, "in_flight": "cut"}, 3),
        ("k_sync", {"k": 2}, [3, 1, 1]),
        ("rennala", {"k": 3, "interrupt": True}, 1),
    ],
    ids=str,
)
def test_devices_make_the_updates_of_the_clock(name, own, each):
    """With ends that are far apart a mesh counts the mini-batches that the plan counts."""
    delay = persistent(delays.deterministic(1.0), APART)
    links = {"graph": nx.path_graph(3)} if name == "neighbour_barrier" else {}
    rule = planned.rule(name, delay, 3, each, **links, **own)
    plan = whole(rule, 2)
    optimizer = scale_by_samples(0.05)
    method = dpsgd(optimizer, links["graph"]) if links else all_reduce(optimizer)
    runtime = mesh.Mesh(
        method,
        losses,
        DATA,
        SAMPLES,
        workers=3,
        mini_batches=int(np.max(rule.trigger.mini_batches)),
        injector=Injector(3, rule.trigger, 0, delay=delay),
    )
    state, real = runtime.advance(runtime.start(X0), np.inf, 2)
    np.testing.assert_array_equal(planned.counted(real, 3), planned.counted(plan, 3))
    assert state.samples == plan.batches.sum() * SAMPLES.batch_size
    took = [real.first[t][real.batches[t] > 0].tolist() for t in range(2)]
    want = [
        [int(plan.first[t][plan.workers[t] == i].min()) for i in range(3) if i in plan.workers[t]]
        if rule.arrivals is not None
        else plan.first[t][plan.batches[t] > 0].tolist()
        for t in range(2)
    ]
    assert took == want


def late_adopter(setting, *, k: "int"):
    """Wait as k_sync: a user's rule, in a module whose annotations are texts."""
    return RULES["k_sync"](setting, k=k)


def test_refusals_list_the_rules_that_would_work(monkeypatch):
    monkeypatch.setitem(RULES, "late_adopter", late_adopter)
    setting = Setting(delays.deterministic(1.0), 2, 1, 0)
    around = (setting, setting._replace(graph=nx.path_graph(2)))
    with_trigger = [
        call for one in around for call in rules.showing(lambda r: r.trigger is not None, one)
    ]
    own = {name.split("/")[0] for name in WITH_TRIGGER}
    assert {call.partition("(")[0] for call in with_trigger} == own | {"late_adopter", "ringmaster"}
    assert {"k_sync(k=1)", "rennala(k=1, interrupt=true)", "late_adopter(k=1)"} <= set(with_trigger)
    all_of_them = rules.showing(lambda rule: rule.turnout.fewest == 2, setting)
    assert {"k_sync(k=2)", "k_async(k=2)"} <= set(all_of_them)
    assert "replay" not in rules.showing(lambda rule: True, setting)  # it needs a file


def test_who_stops_by_what_others_do_says_so():
    """On several processes nobody sees them; else the stop is the same whatever they have done."""
    triggers = {name: made(name).trigger for name in WITH_TRIGGER}
    stopping = {name: trigger for name, trigger in triggers.items() if trigger.stop is not None}
    alone = {name.split("/")[0] for name, trigger in stopping.items() if trigger.sees_all}
    assert alone == {"quorum_grace", "adaptive_deadline"}
    for trigger in (trigger for trigger in stopping.values() if not trigger.sees_all):
        for elapsed in (0.0, 1.0, 4.5, 100.0):
            whole_round = np.full(P, np.max(trigger.mini_batches))
            views = [
                RoundView(finished, elapsed, finished * seconds, np.full((n, P), seconds))
                for finished in (np.zeros(P, int), whole_round)
                for n, seconds in ((0, 0.1), (3, 0.1), (3, 9.0))
            ]
            assert len({bool(trigger.stop(view)) for view in views}) == 1
