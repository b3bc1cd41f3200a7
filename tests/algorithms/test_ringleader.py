"""Ringleader ASGD against its paper's text, and against rules that follow the fast workers."""

import numpy as np
import optax
import pytest

from algorithms import ringleader
from stragglers import delays
from stragglers.processes import persistent
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N, simulated

RATE = 0.02
SPEEDS = persistent(delays.deterministic(1.0), [1.0, 1.1, 1.2, 1.3, 2.0, 2.1, 5.0, 9.0])


class ByThePaper:
    """Algorithm 1 with its two tables, one contribution after the other."""

    def __init__(self):
        self.x, self.steps, self.oldest = np.zeros(D), 0, 0
        self.table, self.following = _empty(), _empty()
        self.owed = set()

    def arrive(self, worker, gradient, taken_after):
        """taken_after: steps that were made before the parameters of the gradient."""
        in_phase_two = bool(self.owed)
        table = self.following if in_phase_two and worker not in self.owed else self.table
        table[worker].append((gradient, taken_after))
        if not in_phase_two and all(self.table):
            self.owed = set(range(N))
        if worker in self.owed:
            self.step(worker)

    def step(self, worker):
        averages = [np.mean([gradient for gradient, _ in row], axis=0) for row in self.table]
        taken = [after for row in self.table for _, after in row]
        self.oldest = max(self.oldest, self.steps - min(taken))
        self.x = self.x - RATE * np.mean(averages, axis=0)
        self.steps += 1
        self.owed.remove(worker)
        if not self.owed:
            self.table, self.following = self.following, _empty()


def _empty():
    return [[] for _ in range(N)]


@pytest.mark.parametrize("k", [1, 3])
def test_it_is_the_algorithm_of_the_paper(k):
    """Also where several contributions arrive at once, of which a worker may have made two."""
    method = ringleader(optax.sgd(RATE), N)
    (found,), schedule = simulated(method, "k_batch_async", SPEEDS, 120, k=k)
    paper, versions = ByThePaper(), [(np.zeros(D), 0)]
    for workers, read in zip(schedule.workers, schedule.version, strict=True):
        for worker, version in zip(workers, read, strict=True):
            at, after = versions[version]
            paper.arrive(worker, CURVATURE[worker] * (at - CENTRE[worker]), after)
        versions.append((paper.x, paper.steps))
    np.testing.assert_allclose(found, paper.x, atol=2e-6)
    assert 2 * N <= paper.steps < 120 * k
    late = k - 1  # a worker goes on from the parameters before the update that it is in
    assert N <= paper.oldest <= 2 * N - 2 + late


def test_who_has_finished_nothing_still_owes_its_step():
    """In rounds that end with the first worker, all of whose contributions arrive together."""
    cut = {"leftovers": "drop", "in_flight": "cut"}
    method, law = ringleader(optax.sgd(RATE), N), delays.exponential(1.0)
    (found,), schedule = simulated(method, "first_finisher", law, 60, 2, **cut)
    paper, idle = ByThePaper(), schedule.batches == 0
    for finished in schedule.batches:
        at, after = paper.x, paper.steps
        for worker in np.flatnonzero(finished):
            paper.arrive(worker, CURVATURE[worker] * (at - CENTRE[worker]), after)
    np.testing.assert_allclose(found, paper.x, atol=2e-6)
    assert idle.any(axis=0).all() and paper.steps > 2 * N
