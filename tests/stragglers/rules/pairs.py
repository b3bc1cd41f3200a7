"""Rules of pairs and their meetings, as several test files ask for them."""

from dataclasses import fields

import numpy as np
import pytest

from comms import topology
from stragglers import delays
from stragglers.processes import markov, persistent
from stragglers.schedule import Schedule
from stragglers.wavefront import interactions
from tests import planned

SHIFTED = delays.shifted_exponential(1.0, 1.0)
DELAYS = {
    "law": SHIFTED,
    "ties": persistent(delays.deterministic(1.0), [1.0, 2.0, 1.0, 0.5, 2.0, 1.0, 1.0, 3.0]),
    "markov": markov(SHIFTED, 5.0, 9.0, 3.0),
}
RULES = {
    "non-blocking": ("random_pairs", {}),
    "blocking": ("random_pairs", {"blocking": True}),
    "bipartite": ("bipartite_pairs", {}),
}
ANY = pytest.mark.parametrize("kind", RULES)


def rule(kind, delay=SHIFTED, graph=None, mini_batches=1, seed=0, **options):
    name, fixed = RULES[kind]
    graph = topology.ring(8) if graph is None else graph
    return planned.rule(
        name, delay, len(graph), mini_batches, seed, graph=graph, **fixed, **options
    )


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def flat(schedule):
    """(landing, i, j, H_i, first_i, start_i, start_j) of every meeting, by time."""
    met = interactions(schedule)
    of = (met.row, met.position[:, 0])
    start = schedule.start[met.row[:, None], met.position]
    columns = [met.time, *met.pairs.T, schedule.batches[of], schedule.first[of], *start.T]
    return np.stack(columns, axis=1)
