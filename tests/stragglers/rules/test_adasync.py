"""AdaSync's choice of K: the closed forms, the table, and what it does to a schedule."""

import numpy as np
import pytest

from stragglers import delays, processes
from stragglers.order_statistics import order_statistic_mean
from stragglers.rules.server import exponential_k, tabled_k
from tests import planned
from tests.refusals import refused

P = 16
EXPONENTIAL = delays.exponential(1.0)
LAWS = [
    EXPONENTIAL,
    delays.shifted_exponential(1.0, 1.0),
    delays.pareto(1.0, 3.0),
    delays.uniform(1.0, 2.0),
]


@pytest.mark.parametrize("k", [1, 4, 15, 16])
def test_exponential_k_solves_its_equation(k):
    for ratio in (1.0, 4.0, 1e12):
        new = exponential_k(P, k)(ratio)
        assert k - 1e-9 <= new <= P
        if k < P and new < P - 1e-6:
            assert new**2 / (P - new) == pytest.approx(k**2 / (P - k) * ratio)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_table_starts_with_k_0_and_grows_as_the_loss_falls(law):
    for k in range(1, P + 1):
        ks = [tabled_k(law, P, k)(ratio) for ratio in (1.0, 2.0, 10.0, 1e3, 1e9)]
        assert ks[0] == k and ks == sorted(ks)
        if k > 1:
            assert ks[-1] == P
            assert tabled_k(law, P, k)(1e-9) == 1


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_every_k_that_is_best_for_some_noise_stays_at_the_initial_loss(probability):
    """Also where two K are each better than those between them, as the last wait for pauses."""
    pause = delays.bernoulli_slowdown(1.0, 5.0, probability)
    seconds = np.array([order_statistic_mean(pause, k, P) for k in range(1, P + 1)])
    noise = np.geomspace(1e-6, 1e4, 20_000)[:, None]
    best = set((seconds + noise / np.arange(1, P + 1)).argmin(axis=1) + 1)
    assert 1 < len(best) < P and P in best
    for k in best:
        assert tabled_k(pause, P, k)(1.0) == k


def adaptive(protocol, delay=EXPONENTIAL, **options):
    return planned.rule("adasync", delay, P, protocol=protocol, interval=5.0, **options)


@pytest.mark.parametrize("protocol", ["k_sync", "k_batch_sync", "k_async", "k_batch_async"])
def test_without_news_it_is_the_protocol(protocol):
    rule = adaptive(protocol, k=3)
    _, schedule = rule.extend(rule.init(), 50)
    fixed = planned.plan(protocol, EXPONENTIAL, P, 50, k=3)
    np.testing.assert_array_equal(schedule.time, fixed.time)
    np.testing.assert_array_equal(schedule.workers, fixed.workers)


def test_the_first_finite_loss_is_the_initial_one():
    rule = adaptive("k_batch_async", k=2)
    state = rule.observe(rule.observe(rule.init(), 0.0, np.inf), 1.0, np.nan)
    state = rule.observe(rule.observe(state, 2.0, 4.0), 10.0, 1.0)
    assert (state.first_loss, state.k) == (4.0, 4)


def test_k_follows_the_loss_at_the_end_of_every_interval():
    rule = adaptive("k_batch_async", k=2, lowest_loss=1.0)
    state = rule.observe(rule.init(), 0.0, 5.0)
    chosen = []
    for seconds, loss in (
        (2.0, 1.5),
        (5.0, 2.0),
        (7.0, 1.01),
        (11.0, 1.25),
        (15.0, 0.9),
        (21.0, 9.0),
        (26.0, 1.001),
        (43.0, 2.0),  # news of three intervals at once
        (44.0, 9.0),
    ):
        state = rule.observe(state, seconds, loss)
        chosen.append(state.k)
    # Nothing in between two ends; below the lowest loss everybody; never fewer than one, nor more
    # than there are.
    assert chosen == [2, 4, 4, 8, 16, 1, 16, 4, 4]
    for loss in (float("inf"), float("nan")):
        assert rule.observe(state, 99.0, loss) == state
    with pytest.raises(ValueError, match=r"at a loss of 0\.9, not above lowest_loss=1; set"):
        rule.observe(rule.init(), 0.0, 0.9)


def test_the_table_knows_laws_without_a_mean_and_without_variance():
    heavy = delays.pareto(1.0, 0.9)  # the last of all has no mean
    assert tabled_k(heavy, P, P - 1)(1.0) == P - 1
    assert tabled_k(heavy, P, 1)(1e9) == P - 1
    with pytest.raises(ValueError, match=r"the k=16-th of 16 .* has no mean; set k to at most 15"):
        tabled_k(heavy, P, P)
    with pytest.raises(ValueError, match=r"adasync: the tail of .*; set mini_batches=1, or proto"):
        tabled_k(heavy, P, 1, mini_batches=2)
    equal = delays.deterministic(2.0)
    for mini_batches in (1, 4):  # more gradients at no cost
        assert tabled_k(equal, P, 4, mini_batches)(1.0) == P


@pytest.mark.parametrize("protocol", ["k_sync", "k_batch_sync", "k_async", "k_batch_async"])
def test_a_smaller_k_ends_the_update_under_way_with_the_next_push(protocol):
    """Of four workers that push every 1, 1.5, 2.25 and 9 s; an update has three pushes before."""
    every = [1.0, 1.5, 2.25, 9.0]
    if protocol in ("k_batch_sync", "k_batch_async"):
        pushes = sorted(n * each for each in every for n in range(1, 12))
    else:
        pushes = every
    delay = processes.persistent(delays.deterministic(1.0), every)
    rule = planned.rule("adasync", delay, 4, protocol=protocol, interval=0.1, k=3)
    state = rule.observe(rule.init(), 0.0, 1.0)
    for seconds in (0.5, 1.2, 1.7, 2.1):
        lowered = rule.observe(state, seconds, 1e6)
        assert lowered.k == 1
        _, row = rule.extend(lowered, 1)
        made = seconds >= pushes[2]  # by its three pushes, before the loss was known
        expected = pushes[2] if made else next(push for push in pushes if push > seconds)
        assert row.time == [expected] and row.workers.size == pushes.index(expected) + 1


@pytest.mark.parametrize("protocol", ["k_async", "k_batch_async"])
def test_updates_that_are_on_their_way_to_the_workers_keep_their_k(protocol):
    """Of two changes, one while updates with the K before the first one are still on their way."""
    own = {"protocol": protocol, "interval": 0.1, "k": 2}
    rule = planned.rule("adasync", EXPONENTIAL, P, 1, 4, communication=2.0, **own)
    state, _ = rule.extend(rule.observe(rule.init(), 0.0, 1.0), 80)
    _, before = rule.extend(state, 40)
    made = (before.start + before.busy).max(axis=1)
    first, second = made[3] + 1e-3, made[8]
    changed = rule.observe(rule.observe(state, first, 0.01), second, 1.0)
    assert changed.k == 2 and rule.observe(state, first, 0.01).k > 8
    _, after = rule.extend(changed, 40)
    kept = int((made <= first).sum())
    assert kept >= 4
    for name in ("workers", "start", "first", "version"):
        ours, theirs = (getattr(rows, name)[:kept, :2] for rows in (after, before))
        np.testing.assert_array_equal(ours, theirs)
    sizes = (after.workers < P).sum(axis=1)
    last = np.where(after.workers < P, after.start + after.busy, 0).max(axis=1)
    assert (sizes[:kept] == 2).all() and sizes[kept] > 2 and (sizes[kept + 1 :] == 2).all()
    assert last[kept] > second


test_bad_values_are_refused = refused(
    ({"protocol": "barrier", "interval": 1.0}, "unknown protocol 'barrier'"),
    ({"protocol": "k_sync", "interval": 0.0}, "interval > 0"),
    ({"protocol": "k_sync", "interval": 1.0, "k": 17}, "1 <= k <= 16"),
    by=lambda own: planned.rule("adasync", EXPONENTIAL, P, **own),
)
