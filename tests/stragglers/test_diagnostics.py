"""Tree distance, staleness, shares and who is waited for: worked by hand, and in known cases."""

import networkx as nx
import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import persistent
from stragglers.schedule import diagnose
from tests import planned

UNEQUAL = persistent(delays.deterministic(1.0), [1.0, 2.0, 4.0])


def test_a_barrier_is_as_far_off_as_its_update_is_large():
    """P workers of M mini-batches: the last gradient of an update has P M - 1 before it."""
    found = diagnose(planned.plan("barrier", UNEQUAL, 3, 10, 2), 3)
    assert found.tree_distance == 5
    assert found.mean_distance == 2.5
    assert found.staleness == 0
    np.testing.assert_allclose(found.share, 1 / 3)
    np.testing.assert_allclose(found.sent, 1 / 3)
    assert diagnose(planned.plan("barrier", UNEQUAL, 3, 10, 2).slice(4, 10), 3).tree_distance == 5


def test_equal_workers_of_async_sgd_are_one_round_behind():
    """Of P workers that push one after the other, each is P - 1 gradients late."""
    apart = persistent(delays.deterministic(1.0), [1.0, 1.0 + 1e-9, 1.0 + 2e-9, 1.0 + 3e-9])
    schedule = planned.plan("k_async", apart, 4, 400, k=1)
    found = diagnose(schedule, 4)
    assert found.tree_distance == 3
    assert found.mean_distance == pytest.approx(3, rel=0.02)  # the first ones are fresher
    assert found.staleness == pytest.approx(schedule.mean_staleness)
    assert not found.limits.any() and not found.waits.any()  # nobody waits
    np.testing.assert_allclose(found.sent, found.share)


def test_distance_counts_the_mini_batches_of_stale_updates():
    """With k_batch_async each contribution of an update is at a distance of its own."""
    law = delays.exponential(1.0)
    schedule = planned.plan("k_batch_async", law, 4, 50, 3, k=2)
    before = np.concatenate([[0], np.cumsum(schedule.batches.sum(axis=1))])
    distances = []
    for t in range(50):
        order = 0
        for contribution in range(2):
            ahead = before[t] - before[schedule.version[t, contribution]]
            for _ in range(schedule.batches[t, contribution]):
                distances.append(ahead + order)
                order += 1
    found = diagnose(schedule, 4)
    assert found.tree_distance == max(distances)
    assert found.mean_distance == pytest.approx(np.mean(distances))


def test_everybody_waits_for_the_slowest():
    """Of 4 s, the worker of 1 s a mini-batch waits 3 and the one of 2 s waits 2."""
    found = diagnose(planned.plan("barrier", UNEQUAL, 3, 10), 3)
    np.testing.assert_array_equal(found.limits, [0, 0, 1])
    np.testing.assert_array_equal(found.waits, [[0, 0, 30], [0, 0, 20], [0, 0, 0]])
    equals = diagnose(planned.plan("barrier", delays.deterministic(1.0), 3, 10), 3)
    assert not equals.limits.any() and not equals.waits.any()


def test_mini_batches_and_messages_are_shared_out_apart():
    """Of rounds that stop after 4 s with 4, 2 and 1 mini-batches, everybody sends one message."""
    found = diagnose(planned.plan("deadline", UNEQUAL, 3, 10, 4, seconds=4.0), 3)
    np.testing.assert_allclose(found.share, [4 / 7, 2 / 7, 1 / 7])
    np.testing.assert_allclose(found.sent, 1 / 3)


def test_a_wait_is_for_the_partner_or_a_neighbour():
    """Whatever happens elsewhere at the same update."""
    law, graph, workers = delays.exponential(1.0), nx.cycle_graph(16), 16
    near = nx.to_numpy_array(graph) > 0
    for name, own in (("random_pairs", {"blocking": True}), ("neighbour_barrier", {})):
        schedule = planned.plan(name, law, workers, 200, graph=graph, **own)
        found = diagnose(schedule, workers)
        assert found.waits.sum() == pytest.approx(schedule.idle.sum(), rel=1e-6)
        alone = np.diag(found.waits).sum()  # until it is ready itself
        assert found.waits[near].all() and found.waits[~near].sum() == alone, name


def test_who_meets_itself_sends_nothing():
    """Of two nodes the passive one updates alone between its meetings."""
    graph = nx.path_graph(2)
    schedule = planned.plan("bipartite_pairs", delays.exponential(1.0), 2, 200, graph=graph)
    assert (schedule.partner == np.arange(2)).any()
    np.testing.assert_allclose(diagnose(schedule, 2).sent, 0.5)
