"""Asynchronous training in the simulator against an event loop in NumPy that trains as it goes."""

import heapq

import numpy as np
import optax
import pytest

from algorithms import (
    all_reduce,
    compensated_rate,
    dc_asgd,
    delay_adaptive,
    hinge_staleness,
    inverse_staleness,
    polynomial_staleness,
)
from algorithms.base import scale_by_samples
from runtimes import simulate
from stragglers import delays
from stragglers.processes import from_law
from stragglers.rules.replay import recorded
from stragglers.schedule import concatenate
from tests import planned
from tests.marks import slow_but
from tests.runtimes.toy import DATA, SAMPLES, X0, gradient, losses

P, UPDATES, RATE = 6, 320, 0.04
LAW = delays.shifted_exponential(0.5, 1.0)


def unchanged(g, staleness, moved):
    del staleness, moved
    return g


def train(protocol, k, decay, correct=unchanged, updates=UPDATES, each=1):
    """Return the parameters after an event loop as one would write it down from the paper.

    each: mini-batches of a contribution, one number or one per worker, by which it is weighed.
    """
    each = np.broadcast_to(each, P)
    process = from_law(LAW).seeded(2)
    w, velocity = X0.astype(np.float64), np.zeros(len(X0))
    read = [(0, w)] * P  # version and parameters that each worker works on
    attempts, counters, flying = [0] * P, [0] * P, []
    cancels, idles = protocol.endswith("_sync"), "batch" not in protocol

    def begin(i, now):
        for _ in range(each[i]):
            now += float(process.duration(i, now, attempts[i]))
            attempts[i] += 1
        heapq.heappush(flying, (now, i))

    for i in range(P):
        begin(i, 0.0)
    for j in range(updates):
        total, weight, contributors = 0.0, 0, []
        for pushes in range(1, k + 1):
            now, i = heapq.heappop(flying)
            version, point = read[i]
            g = gradient(point, SAMPLES.indices(i, counters[i] + np.arange(each[i])))
            total = total + each[i] * correct(g, j - version, w - point)
            weight += each[i]
            counters[i] += each[i]
            contributors.append(i)
            if pushes < k and not idles:
                if not cancels:
                    read[i] = (j, w)
                begin(i, now)
        velocity = decay * velocity + total / weight
        w = w - RATE * velocity
        restarting = {"k_async": contributors, "k_batch_async": [i]}.get(protocol, range(P))
        flying = [] if cancels else flying
        for i in restarting:
            read[i] = (j + 1, w)
            begin(i, now)
    return w


def simulated(method, rule, updates=UPDATES, mini_batches=1):
    runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=mini_batches)
    state = runtime.start(X0)
    for count in (40, 100, updates):  # in turns that are of one shape
        state, schedule = runtime.advance(state, np.inf, min(count, updates - state.update))
    return np.asarray(runtime.models(state))[0], schedule


def optimizer(decay=0.0):
    return optax.chain(optax.trace(decay), scale_by_samples(RATE))


UNEQUAL = (1, 2, 3, 1, 2, 3)  # mini-batches of each worker's contributions


@pytest.mark.parametrize(
    ("protocol", "k", "each"),
    [
        ("k_sync", 1, 1),
        ("k_batch_sync", 3, UNEQUAL),
        ("k_async", 3, UNEQUAL),
        ("k_batch_async", 3, 1),
    ],
)
def test_every_protocol_trains_as_an_event_loop_does(protocol, k, each):
    """To float32 rounding after many updates; a contribution is its workers' mean gradient."""
    rule = planned.rule(protocol, LAW, P, each, 2, k=k)
    ours, schedule = simulated(all_reduce(optimizer(0.8)), rule, mini_batches=np.max(each))
    assert set(np.unique(schedule.batches)) == set(np.ravel(each))
    expected = train(protocol, k, 0.8, each=each)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)


# Each method and what it does to a gradient g, `s` updates old, taken `moved` away.
CORRECTIONS = {
    "compensated_rate": (
        lambda o: compensated_rate(o, threshold=0.002),
        lambda g, s, moved: g * min(1.0, 0.002 / max(moved @ moved, 1e-30)),
    ),
    "dc_asgd": (lambda o: dc_asgd(o, 2.0), lambda g, s, moved: g + 2.0 * g * g * moved),
    "delay_adaptive": (lambda o: delay_adaptive(o, 2), lambda g, s, _: g * 2 / max(2, s)),
    "hinge_staleness": (
        lambda o: hinge_staleness(o, slope=0.5, free=2.0),
        lambda g, s, _: g / (0.5 * (s - 2) + 1) if s > 2 else g,
    ),
    "inverse_staleness": (inverse_staleness, lambda g, s, _: g / max(1, s)),
    "polynomial_staleness": (
        lambda o: polynomial_staleness(o, 0.5),
        lambda g, s, _: g / np.sqrt(1 + s),
    ),
}


@pytest.mark.parametrize("name", slow_but(("dc_asgd",), CORRECTIONS))
def test_every_correction_is_what_its_formula_says(name):
    (make, correct), k = CORRECTIONS[name], 3
    rule = planned.rule("k_batch_async", LAW, P, 1, 2, k=k)
    ours, _ = simulated(make(optimizer(0.5)), rule, 200)
    expected = train("k_batch_async", k, 0.5, correct, 200)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)
    plain = train("k_batch_async", k, 0.5, updates=200)
    assert np.abs(ours - plain).max() > 1e-3  # it makes a difference here


@pytest.mark.slow
def test_one_rate_for_all_comes_from_the_mean_distance():
    """With k = 1 the two forms of the compensated rate are the same, with k = 3 they are not."""

    def ends(k):
        return [
            simulated(
                compensated_rate(optimizer(), threshold=1e-4, per=per),
                planned.rule("k_async", LAW, P, 1, 2, k=k),
                100,
            )[0]
            for per in ("gradient", "mean")
        ]

    one, mean = ends(1)
    np.testing.assert_allclose(one, mean, rtol=1e-6)
    one, mean = ends(3)
    assert np.abs(one - mean).max() > 1e-4


TOLD = ((3.0, 2.0), (6.0, 1.0), (9.0, 0.3), (12.0, 0.1))  # seconds, training loss


def test_a_rule_that_follows_the_loss_acts_at_once():
    """The updates after an observation equal a clock's that had not run ahead."""

    def make():
        return planned.rule("adasync", LAW, P, 1, 2, protocol="k_async", interval=3.0, k=1)

    runtime = simulate.Simulator(
        all_reduce(optimizer(0.5)), losses, DATA, SAMPLES, make(), mini_batches=1
    )
    state = runtime.observe(runtime.start(X0), 0.0, 4.0)
    rows = []
    for seconds, loss in TOLD:
        state, schedule = runtime.advance(state, seconds)
        rows.append(schedule)
        state = runtime.observe(state, seconds, loss)
    ran = concatenate(rows)
    assert len({int((row < P).sum()) for row in ran.workers}) > 2  # K has changed

    rule = make()
    clock_state, expected = rule.observe(rule.init(), 0.0, 4.0), []
    for ran_at_k, (seconds, loss) in zip(rows, TOLD, strict=True):
        clock_state, segment = rule.extend(clock_state, ran_at_k.updates)
        expected.append(segment)
        clock_state = rule.observe(clock_state, seconds, loss)
    np.testing.assert_array_equal(ran.time, concatenate(expected).time)
    np.testing.assert_array_equal(ran.workers, concatenate(expected).workers)
    # What was trained is what the schedule says.
    replayed, _ = simulated(all_reduce(optimizer(0.5)), recorded(ran), ran.updates)
    np.testing.assert_allclose(np.asarray(runtime.models(state))[0], replayed, rtol=1e-5, atol=1e-6)
