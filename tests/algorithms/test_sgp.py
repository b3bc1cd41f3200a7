"""Push-sum (SGP): sums that are kept, the de-biased point, and who waits for whom."""

import numpy as np
import pytest

from algorithms import sgp
from comms.messages import lasting
from runtimes import simulate
from stragglers import delays, processes
from tests import planned
from tests.algorithms.nodes import LAW, RATE, N, gradient, optimizer
from tests.runtimes.toy import DATA, SAMPLES, X0, losses


@pytest.mark.parametrize("overlap", [0, 2])
def test_push_sum_trains_at_the_debiased_model(overlap):
    """Twelve updates with messages that arrive at once, or later and with other weights than 1."""
    method = sgp(optimizer(decay=0.0), N, overlap=overlap)
    rule = planned.rule("neighbour_barrier", LAW, N, 1, 0, graph=method.graph, links=method.links)
    runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=1)
    state, schedule = runtime.advance(runtime.start(X0), np.inf, 12)
    x, weight = np.tile(X0.astype(np.float64), (N, 1)), np.ones(N)
    under_way = [(np.zeros_like(x), np.zeros(N))] * overlap
    for t in range(12):
        z = x / weight[:, None]
        x = x - RATE * np.array([gradient(z[i], i, schedule.first[t, i]) for i in range(N)])
        hop = 2 ** (t % 3)
        under_way.append((np.roll(x / 2, hop, axis=0), np.roll(weight / 2, hop)))
        arriving = under_way.pop(0)
        x, weight = x / 2 + arriving[0], weight / 2 + arriving[1]
    assert (weight < 0.9).all() == (overlap > 0)
    np.testing.assert_allclose(runtime.models(state), x / weight[:, None], rtol=5e-4, atol=5e-5)


def test_overlapping_pushes_cost_no_time_and_come_an_update_later():
    """1 s of work hides 0.5 s of a message; a slow node holds up its receiver an update later."""
    slow = processes.persistent(delays.deterministic(1.0), {0: 5.0})
    for overlap, seconds, late in ((0, 4.5, {0, 1}), (1, 3.0, {0})):
        method = sgp(optimizer(), 8, overlap=overlap)
        for delay in (delays.deterministic(1.0), slow):
            rule = planned.rule(
                "neighbour_barrier",
                delay,
                8,
                1,
                0,
                graph=method.graph,
                links=method.links,
                communication=lasting(method, X0, 8, 0.5),
            )
            _, schedule = rule.extend(rule.init(), 3)
            schedule.validate()
            if delay is slow:
                assert set(np.flatnonzero(schedule.finish[0] >= 5)) == late
            else:
                np.testing.assert_allclose(schedule.time[-1], seconds)
