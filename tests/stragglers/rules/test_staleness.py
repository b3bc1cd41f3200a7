"""Rules that do without old gradients, against a plain event loop and their limiting cases."""

import heapq
from dataclasses import fields

import numpy as np
import pytest

from experiments import prepare
from stragglers import delays
from stragglers.processes import as_process, markov, persistent
from stragglers.rule import Setting
from stragglers.schedule import Schedule
from tests import planned

LAW = delays.shifted_exponential(1.0, 1.0)
DELAYS = {
    "law": LAW,
    "one slow worker": persistent(LAW, {0: 20.0}),
    "markov": markov(LAW, 5.0, 9.0, 3.0),
}


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def plain_loop(delay, workers, k, limit, interrupt, updates, seed, communication):
    """Rows of (worker, start, version, counter), times of the last pushes, ignored pushes."""
    process = as_process(delay).seeded(seed)
    version, counter, attempt = [0] * workers, [0] * workers, [0] * workers
    flying, rows, times, ignored = {}, [], [], 0

    def begin(i, at):
        flying[i] = (at + float(process.duration(i, at, attempt[i])), at)
        attempt[i] += 1

    for i in range(workers):
        begin(i, 0.0)
    for t in range(updates):
        row = []
        while len(row) < k:
            push, i = heapq.nsmallest(1, ((end, i) for i, (end, _) in flying.items()))[0]
            old = t - version[i] >= limit
            if old:
                ignored += 1
            else:
                row.append((i, flying[i][1], version[i], counter[i]))
                counter[i] += 1
            version[i] = t + (len(row) == k)
            begin(i, push + communication)
        for i in range(workers):
            if interrupt and t + 1 - version[i] >= limit:
                version[i] = t + 1
                begin(i, push + communication)
        rows.append(row)
        times.append(push + communication)
    return np.array(rows), np.array(times), ignored


@pytest.mark.parametrize(
    ("delay", "k", "limit", "interrupt"),
    [
        (delay, k, limit, interrupt)
        for delay, interrupt in zip(DELAYS, (True, False, True), strict=True)
        for k, limit in ((1, 2), (1, 4), (3, 2), (4, 1))
    ],
)
def test_ringmaster_equals_a_plain_event_loop_exactly(delay, k, limit, interrupt):
    # Within a batch k_batch_sync fetches nothing: see its own test.
    communication = 0.0 if limit == 1 and interrupt else 0.25
    options = {"k": k, "interrupt": interrupt, "communication": communication}
    schedule = planned.plan("ringmaster", DELAYS[delay], 6, 300, limit=limit, seed=4, **options)
    rows, times, ignored = plain_loop(DELAYS[delay], 6, k, limit, interrupt, 300, 4, communication)
    columns = (schedule.workers, schedule.start, schedule.version, schedule.first)
    for column, expected in zip(columns, rows.transpose(2, 0, 1), strict=True):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(schedule.time, times)
    assert schedule.staleness.max() < limit
    assert (ignored > 0) == (not interrupt)
    schedule.validate()


def test_without_a_limit_ringmaster_is_async_sgd():
    assert_equal(
        planned.plan("ringmaster", LAW, 6, 200, limit=10**9, communication=0.5),
        planned.plan("k_batch_async", LAW, 6, 200, k=1, communication=0.5),
    )


def test_a_limit_of_one_is_rennala_and_interrupted_rennala_is_k_batch_sync():
    assert_equal(
        planned.plan("ringmaster", LAW, 6, 200, limit=1, k=4),
        planned.plan("rennala", LAW, 6, 200, k=4),
    )
    assert_equal(
        planned.plan("rennala", LAW, 6, 200, k=4, interrupt=True, communication=0.5),
        planned.plan("k_batch_sync", LAW, 6, 200, k=4, communication=0.5),
    )


def test_a_slow_worker_never_holds_rennala_up():
    """It never contributes; ignoring old pushes costs up to twice the time."""
    slow = persistent(delays.deterministic(1.0), {0: 20.0})
    cancelled = planned.plan("rennala", slow, 6, 100, k=5, interrupt=True)
    np.testing.assert_allclose(cancelled.time, np.arange(1.0, 101.0))
    ignored = planned.plan("rennala", slow, 6, 100, k=5)
    assert 100 < ignored.time[-1] <= 200
    assert not {0} & {*cancelled.workers.ravel(), *ignored.workers.ravel()}


def test_a_slow_worker_counts_in_ringmaster_if_the_limit_allows_its_delay():
    slow = persistent(delays.deterministic(1.0), {0: 20.0})  # 5 others make 100 updates meanwhile
    contributes = [
        (planned.plan("ringmaster", slow, 6, 600, limit=n).workers == 0).any() for n in (90, 110)
    ]
    assert contributes == [False, True]


def test_a_config_names_the_rules_and_their_parameters():
    ours = "ringmaster(limit=3, interrupt=true)"
    built = prepare.RULE.build(ours, setting=Setting(LAW, 4, 1, 0))
    assert built.asynchronous
    with pytest.raises(ValueError, match="'k' is missing"):
        prepare.RULE.build("rennala", setting=Setting(LAW, 4, 1, 0))
    with pytest.raises(ValueError, match="limit >= 1"):
        planned.plan("ringmaster", LAW, 4, 10, limit=0)
