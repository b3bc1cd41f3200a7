import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from experiments import timeline
from experiments.timeline import KINDS, NANOSECONDS
from stragglers import delays
from stragglers.schedule import EVENT_KINDS, Event, Schedule
from tests import planned

P = 6
RING = nx.cycle_graph(P)
COSTS = 0.05 + 0.1 * np.arange(P)  # s, so that a worker may be restarted before an update lands


def links(update):
    return COSTS / (1 + 9 * (update % 2))


KNOBS = {
    "barrier": {"mini_batches": 3},
    "neighbour_barrier": {"mini_batches": 3, "graph": RING},
    "first_finisher": {"mini_batches": 3},
    "first_finisher cut": {"mini_batches": 3, "in_flight": "cut", "leftovers": "drop"},
    "deadline": {"mini_batches": 3, "seconds": 0.2},
    "quorum": {"mini_batches": 3, "k": 7},
    "quorum_grace": {"mini_batches": 3, "k": 4, "gamma": 0.5},
    "adaptive_deadline": {"mini_batches": 3},
    "drop_compute": {"mini_batches": 3, "calibration": 5},
    "anytime": {"mini_batches": 3, "seconds": 0.3},
    "k_sync": {"k": 3},
    "k_batch_sync": {"k": 5},
    "k_async": {"k": 3},
    "k_batch_async": {"k": 4},
    "quorum_async": {"k": 2},
    "rennala": {"k": 3},
    "ringmaster": {"limit": 2},
    "ringmaster interrupt": {"limit": 2, "interrupt": True},
    "random_pairs": {"mini_batches": 2, "graph": RING, "width": 2},
    "random_pairs blocking": {"mini_batches": 2, "graph": RING, "width": 2, "blocking": True},
    "bipartite_pairs": {"mini_batches": 2, "graph": RING, "width": 2},
    "adasync": {"protocol": "k_async", "interval": 1.0, "k": 2},
}
DELAY = delays.jitter(mean=0.1, sigma=0.3)


def schedule_of(case, updates=40, communication=links):
    knobs = {"mini_batches": 1} | KNOBS[case]
    return planned.plan(case.split()[0], DELAY, P, updates, communication=communication, **knobs)


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


def test_two_workers_with_a_barrier_by_hand():
    columns = {
        "workers": [[0, 1]],
        "start": [[0.0, 0.0]],
        "finish": [[5.0, 5.0]],
        "busy": [[4.0, 1.0]],
        "communication": [[1.0, 1.0]],
        "batches": [[2, 2]],
        "first": [[0, 0]],
        "version": [[0, 0]],
    }
    schedule = Schedule(time=np.array([5.0]), **{k: np.array(v) for k, v in columns.items()})
    events = timeline.trace(schedule, "by hand", "virtual")["traceEvents"]
    shown = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    second = 1e6  # microseconds
    assert sorted(shown) == [
        (1, "communicate", 4 * second, 1 * second),
        (1, "compute", 0.0, 4 * second),
        (2, "communicate", 4 * second, 1 * second),
        (2, "compute", 0.0, 1 * second),
        (2, "wait", 1 * second, 3 * second),
    ]
    assert all(
        e["args"] == {"update": 0, "mini_batches": 2, "staleness": 0}
        for e in events
        if e["ph"] == "X"
    )


def test_whoever_asks_communicates_with_its_partner_who_goes_on_computing():
    schedule = schedule_of("random_pairs")
    drawn = timeline.stretches(schedule)
    sending = drawn.kind == KINDS.index("communicate")
    assert sending.any() and (drawn.partner[sending] != drawn.worker[sending]).all()
    assert all(RING.has_edge(*pair) for pair in zip(drawn.worker, drawn.partner, strict=True))
    assert (drawn.kind != KINDS.index("wait")).all()
    shown = timeline.trace(schedule, "run", "virtual")["traceEvents"]
    met = [(e["tid"] - 1, e["args"]["partner"]) for e in shown if e["ph"] == "X"]
    assert met == list(zip(drawn.worker, drawn.partner, strict=True))


@pytest.mark.parametrize("case", ["first_finisher", "k_batch_async", "random_pairs"])
def test_of_many_stretches_the_first_are_told(case):
    schedule = schedule_of(case)
    every, few = timeline.stretches(schedule), timeline.stretches(schedule, 50)
    assert few.begin.size == 50
    assert set(zip(*few, strict=True)) <= set(zip(*every, strict=True))
    assert few.begin.max() <= np.sort(every.begin)[50]
    drawn = timeline.trace(schedule, "run", "virtual", most=50)["otherData"]["contents"]
    assert drawn.startswith("the first 50 events")


EVENTS = (
    Event(0.0, 2, "joined"),
    Event(0.25, 1, "lost"),
    Event(0.5, 1, "restored", 3),
    Event(1e3, P + 1, "joined"),
)


def test_events_are_instants_of_their_workers():
    schedule = replace(schedule_of("barrier"), events=EVENTS)
    shown = timeline.trace(schedule, "run", "wall")["traceEvents"]
    instants = [(e["name"], e["tid"], e["ts"], e["args"]) for e in shown if e["ph"] == "i"]
    assert instants == [
        ("joined", 3, 0, {}),
        ("lost", 2, 250_000, {}),  # microseconds
        ("restored", 2, 500_000, {"source": 3}),
        ("joined", P + 2, 1e9, {}),
    ]
    named = {e["tid"]: e["args"]["name"] for e in shown if e["name"] == "thread_name"}
    assert named[P + 2] == f"worker {P + 1}" and len(named) == P + 1
    without = timeline.trace(schedule_of("barrier"), "run", "wall")["traceEvents"]
    assert [e for e in shown if e["ph"] == "X"] == [e for e in without if e["ph"] == "X"]


def test_waits_for_the_input_have_a_lane_of_their_own():
    """One value for every stretch between two records, none where nothing is streamed."""
    schedule = schedule_of("barrier")
    metrics = [
        {"seconds": seconds, "input_wait_seconds": waited}
        for seconds, waited in ((0.0, 0.0), (0.5, 0.25), (1.25, 0.25), (2.0, 1.0))
    ]
    traced = timeline.trace(schedule, "a", "wall", metrics=metrics)["traceEvents"]
    lane = [event for event in traced if event["ph"] == "C"]
    assert [(event["ts"], event["args"]["seconds"]) for event in lane] == [
        (0.0, 0.25), (5e5, 0.0), (1.25e6, 0.75),
    ]  # fmt: skip
    plain = [{"seconds": record["seconds"]} for record in metrics]
    assert timeline.trace(schedule, "a", "wall", metrics=plain) == timeline.trace(
        schedule, "a", "wall"
    )


def valid(event):
    """Check the requirements of the trace event format, for the three phases in use."""
    assert isinstance(event["name"], str) and isinstance(event["args"], dict)
    assert type(event["pid"]) is int and type(event["tid"]) is int
    if event["ph"] == "M":
        keys = {
            "process_name": "name",
            "process_labels": "labels",
            "thread_name": "name",
            "thread_sort_index": "sort_index",
        }
        (key,) = event["args"]
        assert keys[event["name"]] == key
    elif event["ph"] == "i":
        assert event["name"] in EVENT_KINDS and event["s"] == "t" and event["ts"] >= 0
    else:
        assert event["ph"] == "X" and event["name"] in KINDS and isinstance(event["cat"], str)
        assert event["ts"] >= 0 and event["dur"] > 0
        assert all(type(value) is int for value in event["args"].values())


def test_the_file_is_in_the_trace_event_format(tmp_path):
    path = tmp_path / timeline.TIMELINE
    schedule = replace(schedule_of("k_sync"), events=EVENTS[:3])
    timeline.write(schedule, path, "a/<b>", "virtual")
    text = path.read_text()
    document = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert document["otherData"]["clock"] == "virtual"
    for event in document["traceEvents"]:
        valid(event)
    threads = {e["tid"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert {e["tid"] for e in document["traceEvents"] if e["ph"] == "X"} == threads
    assert [p.name for p in tmp_path.iterdir()] == [timeline.TIMELINE]
