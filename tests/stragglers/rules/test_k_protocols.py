"""The four protocols against a plain event loop, published numbers and conservation laws."""

import heapq
from dataclasses import fields

import networkx as nx
import numpy as np
import pytest

from runtimes import planning
from stragglers import delays
from stragglers.processes import as_process, markov, persistent, trace
from stragglers.rules.adasync import PROTOCOLS
from stragglers.schedule import Schedule, concatenate
from stragglers.theory.k_protocols import expected_runtime
from tests import planned

EXPONENTIAL = delays.exponential(1.0)
SHIFTED = delays.shifted_exponential(1.0, 1.0)
PARETO = delays.pareto(1.0, 3.0)
DELAYS = {
    "law": SHIFTED,
    "ties": persistent(delays.deterministic(1.0), [1.0, 2.0, 1.0, 0.5, 2.0, 1.0]),
    "markov": markov(SHIFTED, 5.0, 9.0, 3.0),
}


def rule(name, delay=SHIFTED, workers=6, seed=0, k=3, mini_batches=1, **options):
    return planned.rule(name, delay, workers, mini_batches, seed, k=k, **options)


def whole(rule, updates, **knobs):
    return rule.extend(rule.init(), updates, **knobs)[1]


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def plain_loop(name, delay, workers, k, updates, seed, communication):
    """Rows of (worker, start, push, version, counter), times of updates, versions held."""
    process = as_process(delay).seeded(seed)
    version, counter, attempt = [0] * workers, [0] * workers, [0] * workers
    flying, rows, times = [], [], []

    def begin(i, at):
        seconds = float(process.duration(i, at, attempt[i]))
        heapq.heappush(flying, (at + seconds, i, at))
        attempt[i] += 1

    for i in range(workers):
        begin(i, 0.0)
    for t in range(updates):
        row = []
        while len(row) < k:
            push, i, start = heapq.heappop(flying)
            row.append((i, start, push, version[i], counter[i]))
            counter[i] += 1
            if name == "k_batch_sync" and len(row) < k:
                begin(i, push)
            if name == "k_batch_async":
                version[i] = t + 1 if len(row) == k else t
                begin(i, push + communication)
        times.append(row[-1][2] + communication)
        rows.append(row)
        if name in ("k_sync", "k_batch_sync"):
            flying = []
            restarting = range(workers)
        else:
            restarting = [i for i, *_ in row] if name == "k_async" else []
        for i in restarting:
            version[i] = t + 1
            begin(i, times[-1])
    return np.array(rows), np.array(times), version


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    ("delay", "k", "communication"), [("law", 1, 0.0), ("ties", 3, 0.25), ("markov", 6, 0.0)]
)
def test_equals_a_plain_event_loop_exactly(name, delay, k, communication):
    delay = DELAYS[delay]
    schedule = whole(rule(name, delay, k=k, seed=4, communication=communication), 300)
    rows, times, held = plain_loop(name, delay, 6, k, 300, 4, communication)
    columns = (schedule.workers, schedule.start, schedule.version, schedule.first)
    for column, expected in zip(columns, rows[..., [0, 1, 3, 4]].transpose(2, 0, 1), strict=True):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(schedule.time, times)
    np.testing.assert_array_equal(schedule.held, held)
    assert (schedule.batches == 1).all()
    schedule.validate()


def test_a_segment_longer_than_the_looked_up_durations_equals_short_ones():
    delay = persistent(EXPONENTIAL, [1.0, 50.0, 1.0])
    long = rule("k_batch_async", delay, 3, k=2)
    state, parts = long.init(), []
    for _ in range(40):
        state, schedule = long.extend(state, 50)
        parts.append(schedule)
    assert_equal(concatenate(parts), whole(long, 2000))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_extending_leaves_the_old_state_as_it_was(name):
    adaptive = rule(name)
    state, _ = adaptive.extend(adaptive.init(), 10)
    assert_equal(adaptive.extend(state, 10)[1], adaptive.extend(state, 10)[1])
    after, wide = adaptive.extend(state, 10, k=5)  # the knob of AdaSync
    assert wide.workers.shape == (10, 5) and after.update == 20
    assert_equal(adaptive.extend(state, 10)[1], whole(adaptive, 20).slice(10, 20))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_counter_is_used_once_and_in_order(name):
    schedule = whole(rule(name, k=4), 200)
    for i in range(6):
        used = schedule.first[schedule.workers == i]
        np.testing.assert_array_equal(used, np.arange(len(used)))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_workers_are_distinct_where_they_wait(name):
    rows = whole(rule(name, k=6), 200).workers
    distinct = np.array([len(set(row.tolist())) for row in rows])
    assert (distinct == 6).all() == ("batch" not in name)


@pytest.mark.parametrize("name", ["k_async", "k_batch_async"])
def test_rules_meet_the_same_draws(name):
    schedule = whole(rule(name, seed=3), 200)
    draws = as_process(SHIFTED).seeded(3).duration(schedule.workers, 0.0, schedule.first)
    np.testing.assert_allclose(schedule.busy, draws, rtol=1e-9)


@pytest.mark.parametrize(("name", "mini_batches"), [("k_sync", 1), ("k_batch_sync", 4)])
def test_synchronous_protocols_are_a_quorum_that_cuts(name, mini_batches):
    schedule = whole(rule(name, k=4, communication=0.5), 200)
    quorum = planned.plan(
        "quorum",
        SHIFTED,
        6,
        200,
        mini_batches,
        0,
        k=4,
        in_flight="cut",
        landing="all",
        communication=0.5,
    )
    np.testing.assert_allclose(schedule.time, quorum.time, rtol=1e-12)
    for row, batches in zip(schedule.workers, quorum.batches, strict=True):
        np.testing.assert_array_equal(np.bincount(row, minlength=6), batches)
    assert not schedule.staleness.any()


def test_all_of_k_sync_is_a_barrier():
    schedule = whole(rule("k_sync", k=6, communication=lambda t: 0.1 * (t % 2)), 50)
    barrier = planned.plan("barrier", SHIFTED, 6, 50, 1, 0, communication=lambda t: 0.1 * (t % 2))
    np.testing.assert_allclose(schedule.time, barrier.time, rtol=1e-12)
    np.testing.assert_array_equal(np.sort(schedule.workers), barrier.workers)


def test_a_worked_out_round_of_each():
    """Worker 0 needs 2 s, worker 1 needs 3 s; updates of two pushes, 0.5 s for communication."""
    delay = persistent(delays.deterministic(1.0), [2.0, 3.0])
    made = {n: whole(rule(n, delay, 2, k=2, communication=0.5), 2) for n in PROTOCOLS}
    expected = {
        # workers, start, finish, busy, version
        "k_sync": ([0, 1], [3.5, 3.5], [7.0, 7.0], [2.0, 3.0], [1, 1]),
        "k_batch_sync": ([0, 1], [3.5, 3.5], [7.0, 7.0], [3.0, 3.0], [1, 1]),
        "k_async": ([0, 1], [3.5, 3.5], [7.0, 7.0], [2.0, 3.0], [1, 1]),
        "k_batch_async": ([0, 1], [2.5, 3.5], [5.0, 7.0], [2.0, 3.0], [0, 1]),
    }
    for name, columns in expected.items():
        s = made[name]
        for column, values in zip(
            (s.workers, s.start, s.finish, s.busy, s.version), columns, strict=True
        ):
            np.testing.assert_array_equal(column[1], values)
        np.testing.assert_array_equal(s.time, [3.5, 7.0])
        np.testing.assert_array_equal(s.communication, 0.5)


def test_a_worker_that_pushes_again_and_again_is_busy_once_at_a_time():
    """Worker 0 needs 1 s, worker 1 needs 5 s: three pushes of worker 0, then 0.5 s for all."""
    delay = persistent(delays.deterministic(1.0), [1.0, 5.0])
    schedule = whole(rule("k_batch_sync", delay, 2, k=3, communication=0.5), 2)
    np.testing.assert_array_equal(schedule.workers, 0)
    for column, values in (
        (schedule.start, [3.5, 4.5, 5.5]),
        (schedule.finish, [4.5, 5.5, 7.0]),
        (schedule.busy, [1.0, 1.0, 1.0]),
        (schedule.communication, [0.0, 0.0, 0.5]),
    ):
        np.testing.assert_array_equal(column[1], values)


# K = 1, 2, 4, 8 of 8 workers: seconds per update, from an independent simulation (+-0.5 %) of
# 1803.01113's protocols; k_batch_sync with exponential delays in closed form, K/8.
MEASURED = {
    (EXPONENTIAL, "k_sync"): [0.125, 0.268, 0.634, 2.718],
    (EXPONENTIAL, "k_async"): [0.125, 0.267, 0.635, 2.718],
    (EXPONENTIAL, "k_batch_async"): [0.125, 0.251, 0.499, 0.997],
    (EXPONENTIAL, "k_batch_sync"): [0.125, 0.250, 0.500, 1.000],
    (SHIFTED, "k_sync"): [1.125, 1.268, 1.634, 3.718],
    (SHIFTED, "k_async"): [0.249, 0.534, 1.242, 3.721],
    (SHIFTED, "k_batch_async"): [0.251, 0.499, 1.000, 2.003],
    (SHIFTED, "k_batch_sync"): [1.123, 1.268, 1.629, 2.666],
    (PARETO, "k_sync"): [1.043, 1.096, 1.243, 2.746],
    (PARETO, "k_async"): [0.187, 0.399, 0.943, 2.738],
    (PARETO, "k_batch_async"): [0.187, 0.374, 0.752, 1.502],
    (PARETO, "k_batch_sync"): [1.043, 1.096, 1.242, 2.041],
}


@pytest.mark.few(4)
@pytest.mark.parametrize(("law", "name"), list(MEASURED)[::2] + list(MEASURED)[1::4], ids=str)
def test_seconds_per_update_and_staleness(law, name):
    shared = rule(name, law, 8)  # one rule, so that all k meet the same draws
    for k, seconds in zip((1, 2, 4, 8), MEASURED[law, name], strict=True):
        updates = 120_000 // k
        schedule = whole(shared, updates, k=k)
        assert schedule.time[-1] / updates == pytest.approx(seconds, rel=0.01)
        staleness = {"k_async": 8 / k - 1, "k_batch_async": 7 / k}.get(name, 0.0)
        assert schedule.mean_staleness == pytest.approx(staleness, rel=0.005)


def test_fresh_share_and_geometric_staleness_of_exponential_delays():
    for k in (1, 2, 4, 8):
        waiting = planned.plan("k_async", EXPONENTIAL, 8, 120_000 // k, k=k)
        assert (waiting.staleness == 0).mean() == pytest.approx(k / 8, rel=0.02)
        batch = planned.plan("k_batch_async", EXPONENTIAL, 8, 120_000 // k, k=k)
        share = np.mean(1 - (7 / 8) ** np.arange(1, k + 1))
        assert (batch.staleness == 0).mean() == pytest.approx(share, rel=0.02)
    lone = planned.plan("k_async", EXPONENTIAL, 8, 120_000, k=1).staleness
    geometric = (1 / 8) * (7 / 8) ** np.arange(20)
    np.testing.assert_allclose(np.bincount(lone[:, 0])[:20] / lone.size, geometric, atol=0.003)


@pytest.mark.parametrize("name", ["k_async", "k_batch_async"])
def test_equal_deterministic_workers_take_turns(name):
    schedule = whole(rule(name, delays.deterministic(0.5), 6, k=1), 60)
    t = np.arange(60)
    np.testing.assert_array_equal(schedule.workers[:, 0], t % 6)
    np.testing.assert_array_equal(schedule.time, 0.5 * (t // 6 + 1))
    np.testing.assert_array_equal(schedule.staleness[:, 0], np.minimum(t, 5))


def test_nobody_idles_in_k_batch_async_and_k_async_works_its_share():
    assert planned.plan("k_batch_async", SHIFTED, 8, 3000, k=4).idle_fraction == pytest.approx(
        0, abs=1e-9
    )
    waiting = planned.plan("k_async", SHIFTED, 8, 20_000, k=4)
    seconds = waiting.time[-1] / 20_000
    busy = expected_runtime("k_batch_async", SHIFTED, 4, 8) / seconds
    assert 1 - waiting.idle_fraction == pytest.approx(busy, rel=0.01)


def test_persistently_slow_workers_are_the_stale_ones():
    schedule = planned.plan("k_async", persistent(SHIFTED, {0: 10.0}), 4, 4000, k=1)
    slow = schedule.workers == 0
    assert schedule.staleness[slow].mean() > 5 * schedule.staleness[~slow].mean()


def test_recorded_durations_are_replayed(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("worker,time,batch_time\n0,0,1\n0,1,4\n1,0,2\n")
    schedule = whole(rule("k_async", trace(str(path)), 2, k=1), 5)
    np.testing.assert_array_equal(schedule.workers[:, 0], [0, 1, 1, 0, 0])
    np.testing.assert_array_equal(schedule.time, [1.0, 2.0, 4.0, 5.0, 6.0])


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("k", [1, 6])
def test_announced_versions_keep_every_read_in_one_slot_more_than_workers(name, k):
    segments, memory = rule(name, PARETO, k=k), np.zeros(7, int)
    state, held, rng = segments.init(), planning.init_slots(7), np.random.default_rng(0)
    while state.update < 400:
        begin = state.update
        state, schedule = segments.extend(state, int(rng.integers(1, 60)))
        held, read, write, current = planning.allocate(held, schedule)
        for row, t in enumerate(range(begin, state.update)):
            np.testing.assert_array_equal(memory[read[row]], schedule.version[row])
            assert memory[current[row]] == t
            memory[write[row]] = t + 1


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_may_be_stale_says_so(name):
    assert planned.rule(name, SHIFTED, 4, k=2).asynchronous == name.endswith("async")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rule("k_sync", k=7), "k_sync: needs 1 <= k <= 6 workers.*, got k=7"),
        (lambda: rule("k_async", k=0), "k_async: needs 1 <= k <= 6 workers.*, got k=0"),
        (lambda: rule("k_batch_async", k=0), "k_batch_async: needs 1 <= k, got k=0"),
        (lambda: whole(rule("k_async"), 5, k=9), "got k=9; set k in this range"),
        (lambda: rule("k_sync", workers=0), "workers >= 1, got workers=0"),
        (lambda: rule("k_async", mini_batches=[1.5] * 6), "set whole numbers of at least 1"),
        (lambda: rule("k_sync", graph=nx.cycle_graph(6)), "have no neighbours, but got a graph"),
        (lambda: rule("k_async", draw="round"), "got draw='round'; set draw='mini_batch'"),
        (lambda: rule("k_async", communication=lambda t: -1.0), "communication >= 0, got -1"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_more_pushes_than_workers_in_an_update():
    for name in ("k_batch_sync", "k_batch_async"):
        assert whole(rule(name, workers=2, k=300), 3).workers.shape == (3, 300)
