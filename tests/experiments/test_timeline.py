"""Timelines of schedules: by hand, and by the invariants of every waiting rule."""

import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from experiments import timeline
from experiments.timeline import KINDS, NANOSECONDS
from stragglers import delays
from stragglers.schedule import Event, Schedule
from tests import planned

P = 6
RING = nx.cycle_graph(P)
COSTS = 0.05 + 0.1 * np.arange(P)  # s, so that a worker may be restarted before an update lands
KNOBS = {  # rules whose rows differ in kind
    "barrier": {"mini_batches": 3}, "neighbour_barrier": {"mini_batches": 3, "graph": RING},
    "first_finisher cut": {"mini_batches": 3, "in_flight": "cut", "leftovers": "drop"},
    "deadline": {"mini_batches": 3, "seconds": 0.2}, "k_sync": {"k": 3}, "k_batch_sync": {"k": 5},
    "quorum_grace": {"mini_batches": 3, "k": 4, "gamma": 0.5}, "k_async": {"k": 3},
    "ringmaster interrupt": {"limit": 2, "interrupt": True},
    "random_pairs": {"mini_batches": 2, "graph": RING, "width": 2},
    "random_pairs blocking": {"mini_batches": 2, "graph": RING, "width": 2, "blocking": True},
}  # fmt: skip
DELAY = delays.jitter(mean=0.1, sigma=0.3)


def schedule_of(case):
    knobs = {"mini_batches": 1} | KNOBS[case]
    links = {"communication": lambda update: COSTS / (1 + 9 * (update % 2))}
    return planned.plan(case.split()[0], DELAY, P, 40, **links, **knobs)


@pytest.mark.parametrize("case", KNOBS)
def test_a_worker_does_one_thing_at_a_time_and_computes_as_long_as_it_is_busy(case):
    schedule = schedule_of(case)
    drawn = timeline.stretches(schedule)
    for worker in range(P):
        own = drawn.worker == worker
        assert (drawn.begin[own][1:] >= drawn.end[own][:-1]).all()
        real = (schedule.workers == worker) & (schedule.finish > schedule.start)
        computing = own & (drawn.kind == KINDS.index("compute"))
        seconds = (drawn.end - drawn.begin)[computing].sum() / NANOSECONDS
        np.testing.assert_allclose(seconds, schedule.busy[real].sum(), atol=1e-9 * real.sum())
    assert set(drawn.worker) <= set(range(P))  # nobody is no worker
    assert drawn.end.max() <= np.rint(NANOSECONDS * schedule.time[-1])
    if case == "random_pairs":  # who asks communicates, its partner goes on computing
        sending = drawn.kind == KINDS.index("communicate")
        assert sending.any() and (drawn.partner[sending] != drawn.worker[sending]).all()
        assert all(RING.has_edge(*pair) for pair in zip(drawn.worker, drawn.partner, strict=True))
        assert (drawn.kind != KINDS.index("wait")).all()
    few = timeline.stretches(schedule, 50)
    assert few.begin.size == 50 and few.begin.max() <= np.sort(drawn.begin)[50]
    assert set(zip(*few, strict=True)) <= set(zip(*drawn, strict=True))


def test_two_workers_with_a_barrier_by_hand():
    columns = {
        "workers": [[0, 1]], "start": [[0.0, 0.0]], "finish": [[5.0, 5.0]], "busy": [[4.0, 1.0]],
        "communication": [[1.0, 1.0]], "batches": [[2, 2]], "first": [[0, 0]], "version": [[0, 0]],
    }  # fmt: skip
    schedule = Schedule(time=np.array([5.0]), **{k: np.array(v) for k, v in columns.items()})
    events = timeline.trace(schedule, "by hand", "virtual")["traceEvents"]
    shown = [e for e in events if e["ph"] == "X"]
    second = 1e6  # microseconds
    assert sorted((e["tid"], e["name"], e["ts"], e["dur"]) for e in shown) == [
        (1, "communicate", 4 * second, 1 * second),
        (1, "compute", 0.0, 4 * second),
        (2, "communicate", 4 * second, 1 * second),
        (2, "compute", 0.0, 1 * second),
        (2, "wait", 1 * second, 3 * second),
    ]
    about = {"update": 0, "mini_batches": 2, "staleness": 0}
    assert all(event["args"] == about for event in shown)


EVENTS = (Event(0.0, 2, "joined"), Event(0.25, 1, "lost"), Event(0.5, 1, "restored", 3),
          Event(1e3, P + 1, "joined"))  # fmt: skip


def test_a_file_has_events_as_instants(tmp_path):
    schedule = replace(schedule_of("barrier"), events=EVENTS)
    path = tmp_path / timeline.TIMELINE
    timeline.write(schedule, path, "a/<b>", "wall")
    assert [p.name for p in tmp_path.iterdir()] == [timeline.TIMELINE]
    document = json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(constant))
    shown = document["traceEvents"]
    assert document["displayTimeUnit"] == "ms" and document["otherData"]["clock"] == "wall"
    assert all(type(event["pid"]) is type(event["tid"]) is int for event in shown)
    instants = [(e["name"], e["tid"], e["ts"], e["args"], e["s"]) for e in shown if e["ph"] == "i"]
    assert instants == [
        ("joined", 3, 0, {}, "t"),
        ("lost", 2, 250_000, {}, "t"),  # microseconds
        ("restored", 2, 500_000, {"source": 3}, "t"),
        ("joined", P + 2, 1e9, {}, "t"),
    ]
    named = {e["tid"]: e["args"]["name"] for e in shown if e["name"] == "thread_name"}
    assert named[P + 2] == f"worker {P + 1}" and len(named) == P + 1
    plain = timeline.trace(schedule_of("barrier"), "run", "wall")["traceEvents"]
    spans = [event for event in shown if event["ph"] == "X"]
    assert spans == [event for event in plain if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in spans)
    for most, words in ((50, "the first 50 events"), (len(spans), "all of the run")):
        contents = timeline.trace(schedule, "run", "wall", most=most)["otherData"]["contents"]
        assert contents.startswith(words)
