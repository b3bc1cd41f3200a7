"""Links that serve one transfer at a time, on cases that can be worked out by hand."""

import networkx as nx
import numpy as np
import pytest

from algorithms.gossip import graph_matchings
from comms import topology
from stragglers import delays, processes, serial_links, wavefront
from stragglers.rule import whole
from stragglers.schedule import Schedule
from tests import planned


def schedule(n, graph, law=None, kind="random_pairs", updates=60, **options):
    rule = planned.rule(kind, law or delays.deterministic(1.0), n, 1, 0, graph=graph, **options)
    return whole(rule, updates)


def test_two_nodes_that_ask_each_other_at_once_take_turns():
    """Both end at 1; node 0's transfer is over at 1.25, node 1's at 1.5, and so on for ever."""
    made = schedule(2, nx.path_graph(2), width=1, updates=6)
    spent = serial_links.pair_seconds(made, 2, 0.25)
    assert spent[:2].tolist() == [0.25, 0.5]
    # Node 0 begins at 1.25, node 1 at 1.5: they never meet a taken link again.
    np.testing.assert_allclose(spent[2:], 0.25)


def test_load_waits_passive_nodes_do_not_and_partners_that_stop_are_refused():
    made = schedule(16, nx.complete_graph(16), delays.jitter(1.0, 0.3), updates=400)
    over = [serial_links.pair_seconds(made, 16, t).mean() / t for t in (1e-9, 0.1, 0.5)]
    assert over[0] == pytest.approx(1, rel=0.01) and over[0] < over[1] < over[2]
    made = schedule(8, topology.ring(8), kind="bipartite_pairs")
    met = wavefront.interactions(made).pairs
    spent = serial_links.pair_seconds(made, 8, 0.1)
    assert len(spent) == (met[:, 0] != met[:, 1]).sum() < len(met)
    assert (spent >= 0.1 - 1e-12).all()
    with pytest.raises(ValueError, match="stop for meetings; make it with blocking=false"):
        serial_links.pair_seconds(schedule(4, nx.complete_graph(4), blocking=True), 4, 0.1)


def test_transfers_to_the_centre_of_a_star_queue_in_the_order_of_asking():
    """Node i asks at 1 + i / 100 s and is served as the i-th."""
    n = 5
    asked = 0.01 * np.arange(n)
    law = processes.persistent(delays.deterministic(1.0), 1 + asked)
    made = schedule(n, topology.star(n), law, width=1, updates=n)
    spent = serial_links.pair_seconds(made, n, 0.1)
    np.testing.assert_allclose(spent[:n], 0.1 * np.arange(1, n + 1) - asked)


def test_of_transfers_that_end_at_once_none_lets_a_later_request_overtake():
    """Pairs 2-0 and 3-1 end at 2.1 s; 0 has asked 1 at 1.5 s, and 4 has asked 0 at 1.8 s."""
    asked = [(0, 1, 0.1), (2, 0, 0.5), (3, 1, 0.6), (0, 1, 0.4), (4, 0, 1.8)]  # node, partner, s
    count, nothing = len(asked), np.zeros((len(asked), 2))
    time = np.arange(1.0, count + 1)
    made = Schedule(
        time=time, workers=np.array([pair[:2] for pair in asked], np.int32), start=nothing,
        finish=np.stack([time, time], 1), batches=np.tile(np.int32([1, 0]), (count, 1)),
        first=nothing.astype(np.int64), version=nothing.astype(np.int32),
        busy=np.array([[seconds, 0.0] for *_, seconds in asked]), communication=nothing,
        partner=np.tile(np.int32([1, 0]), (count, 1)), population=5,
    )  # fmt: skip
    np.testing.assert_allclose(serial_links.pair_seconds(made, 5, 1.0), [1, 1.6, 1.5, 1.6, 2.3])


def test_equal_nodes_gossip_for_a_transfer_per_matching():
    for graph, matchings in ((topology.ring(8), 2), (topology.hypercube(8), 3)):
        spent = serial_links.matching_rounds(np.ones((3, 8)), graph_matchings(graph)[1], 0.1)
        np.testing.assert_allclose(spent, 0.1 * matchings)


def test_neighbours_wait_for_a_slow_node_and_for_its_neighbours_later():
    """Path 0 - 1 - 2 - 3 in the matchings {01, 23} and {12}; node 0 computes 2 s longer."""
    partners = np.array([[1, 0, 3, 2], [0, 2, 1, 3]])
    spent = serial_links.matching_rounds(np.array([[3.0, 1, 1, 1]]), partners, 0.5)
    np.testing.assert_allclose(spent, [[0.5, 3.0, 3.0, 0.5]])


def test_equal_nodes_push_for_one_transfer_and_a_slow_one_holds_up_its_receiver():
    np.testing.assert_allclose(serial_links.push_rounds(np.ones((4, 8)), 0.1), 0.1)
    busy = np.ones((1, 4))
    busy[0, 0] = 2.0
    np.testing.assert_allclose(serial_links.push_rounds(busy, 0.1), [[0.1, 1.1, 0.1, 0.1]])


def test_a_message_waits_until_its_receivers_link_has_taken_the_last_one_in():
    """Node 1's is taken by slow node 0 until 5.1 s, so that node 7 is rid of its next at 5.2 s."""
    busy = np.ones((2, 8))
    busy[0, 0] = 5.0
    assert serial_links.push_rounds(busy, 0.1)[1, 7] == pytest.approx(5.2 - 2.1)


def test_a_ring_all_reduce_takes_all_its_steps_and_ends_with_the_slowest():
    np.testing.assert_allclose(serial_links.ring_rounds(np.ones((2, 4)), 0.1), 0.6)
    busy = np.array([[1.0, 3.0, 1.0, 1.0]])
    begin = busy + serial_links.ring_rounds(busy, 0.1)
    np.testing.assert_allclose(begin, 3.6)  # 6 steps after the slowest
