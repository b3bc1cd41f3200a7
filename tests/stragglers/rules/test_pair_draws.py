"""Draws of the rules of pairs: partners, local steps and durations."""

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from comms import topology
from stragglers.processes import as_process
from stragglers.rule import whole
from stragglers.wavefront import interactions
from tests.stragglers.rules.pairs import DELAYS, SHIFTED, flat, rule


def test_a_lookup_is_addressed_by_worker_and_round():
    """Partners and steps do not depend on the delays, nor durations on the rule."""
    options = {"steps": "geometric", "local_steps": 2, "mini_batches": 6, "seed": 7}
    made = [whole(rule("non-blocking", DELAYS[d], **options), 500) for d in ("law", "ties")]
    for i in range(8):
        one, other = (r[r[:, 1] == i][:20, 2:5] for r in map(flat, made))
        np.testing.assert_array_equal(one, other)
        assert len(one) == 20
    blocking = whole(rule("blocking", seed=7), 500)
    draws = as_process(SHIFTED).seeded(7).duration(blocking.workers, 0.0, blocking.first)
    np.testing.assert_allclose(blocking.busy, draws, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["non-blocking", "bipartite"])
def test_partners_are_uniform_among_neighbours(kind):
    graph = nx.complete_bipartite_graph(3, 5)
    pair = interactions(whole(rule(kind, graph=graph, width=2), 6000)).pairs
    for i in range(3):
        drawn = np.bincount(pair[pair[:, 0] == i, 1], minlength=8)
        assert drawn[:3].sum() == 0
        assert stats.chisquare(drawn[3:]).pvalue > 1e-3


def test_partners_steps_and_durations_tell_nothing_of_each_other():
    """Correlations of the draws of one node, 5 standard deviations of none at most."""
    options = {"mini_batches": 8, "local_steps": 3, "steps": "geometric"}
    schedule = whole(rule("non-blocking", graph=topology.complete(8), **options), 12_000)
    met = interactions(schedule)
    mine = met.pairs[:, 0] == 0
    at = (met.row[mine], met.position[mine, 0])
    steps = schedule.batches[at]
    columns = met.pairs[mine, 1], steps, schedule.busy[at] / steps
    between = np.corrcoef(columns)[np.triu_indices(3, 1)]
    assert np.abs(between).max() < 5 / np.sqrt(mine.sum())


def test_partners_follow_the_weights_of_edges():
    graph = topology.complete(4)
    weights = {1: 1.0, 2: 2.0, 3: 5.0}
    for j, weight in weights.items():
        graph.edges[0, j]["weight"] = weight
    pair = interactions(whole(rule("non-blocking", graph=graph), 40_000)).pairs
    drawn = np.bincount(pair[pair[:, 0] == 0, 1], minlength=4)[1:]
    expected = drawn.sum() * np.array([1, 2, 5]) / 8
    assert stats.chisquare(drawn, expected).pvalue > 1e-3


@pytest.mark.parametrize(("mean", "most"), [(2, 4), (2, 64), (1, 3), (3.5, 4)])
def test_geometric_steps_have_the_mean_that_is_asked_for(mean, most):
    schedule = whole(
        rule("non-blocking", mini_batches=most, local_steps=mean, steps="geometric"), 40_000
    )
    steps = flat(schedule)[:, 3]
    assert steps.min() >= 1 and steps.max() <= most
    assert steps.mean() == pytest.approx(mean, rel=0.01)
    if most == 64:  # hardly capped: P(H > h) = (1 - 1 / mean)^h
        assert (steps > 3).mean() == pytest.approx(0.5**3, rel=0.05)
